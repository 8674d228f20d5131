// Shared libraries that are loaded at run time. library_posix.cpp implements this header for Linux
// and macOS, library_windows.cpp for Windows.
#pragma once

namespace plait::platform {

struct Library {
    void* handle = nullptr;   // null if there is no such library, or it cannot be loaded
    bool was_loaded = false;  // before this call, by other code of the process
};

// Searches the system's folders for the library. It is never unloaded.
Library load_library(const char* name);
// Returns null if the library has no such symbol.
void* find_symbol(const Library& library, const char* name);

// Registers a function that runs in the child process after fork(). Does nothing where there is no
// fork().
void on_fork_in_child(void (*run)());

}  // namespace plait::platform

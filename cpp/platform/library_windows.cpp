#if defined(_WIN32)
#include "platform/library.h"
#include "platform/win32.h"

namespace plait::platform {

Library load_library(const char* name) {
    const bool was_loaded = ::GetModuleHandleA(name) != nullptr;
    // These folders exclude the current one, whose files anyone may have written.
    return {::LoadLibraryExA(name, nullptr, LOAD_LIBRARY_SEARCH_DEFAULT_DIRS), was_loaded};
}

void* find_symbol(const Library& library, const char* name) {
    return reinterpret_cast<void*>(::GetProcAddress(static_cast<HMODULE>(library.handle), name));
}

void on_fork_in_child(void (*)()) {}

}  // namespace plait::platform
#endif

#if !defined(_WIN32)
#include <dlfcn.h>
#include <pthread.h>

#include "platform/library.h"

namespace plait::platform {

Library load_library(const char* name) {
    // RTLD_NOW: a library whose own symbols are missing fails here instead of in a later call.
    if (void* loaded = ::dlopen(name, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) return {loaded, true};
    return {::dlopen(name, RTLD_NOW | RTLD_LOCAL), false};
}

void* find_symbol(const Library& library, const char* name) {
    return ::dlsym(library.handle, name);
}

void on_fork_in_child(void (*run)()) { ::pthread_atfork(nullptr, nullptr, run); }

}  // namespace plait::platform
#endif

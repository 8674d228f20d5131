/* A machine without a Vulkan loader, as the one program sees it that has this preloaded. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <string.h>

void *dlopen(const char *name, int flags) {
    if (name && strstr(name, "libvulkan")) return 0;
    void *(*real)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    return real(name, flags);
}

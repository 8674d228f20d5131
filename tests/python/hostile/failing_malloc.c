/* Refuses chosen allocations of one thread. Preloaded, every malloc of the process comes through here; glibc's own
 * functions do the work.
 *
 *   refuse(k, all)   the k-th allocation of the calling thread from now (k >= 1); with `all`, every later one too
 *   refused()        ends that; how many were refused
 */
#define _GNU_SOURCE
#include <errno.h>
#include <stddef.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

void *__libc_malloc(size_t);
void *__libc_calloc(size_t, size_t);
void *__libc_realloc(void *, size_t);
void *__libc_memalign(size_t, size_t);

static __thread long left, n_refused;
static __thread int for_good;

void refuse(long k, int all) {
    left = k;
    for_good = all;
    n_refused = 0;
}

long refused(void) {
    left = 0;
    return n_refused;
}

static int is_refused(void) {
    if (left == 0) return 0;
    if (left > 1) {
        --left;
        return 0;
    }
    if (!for_good) left = 0;
    ++n_refused;
    errno = ENOMEM;
    return 1;
}

void *malloc(size_t n) { return is_refused() ? NULL : __libc_malloc(n); }
void *calloc(size_t n, size_t each) { return is_refused() ? NULL : __libc_calloc(n, each); }
void *realloc(void *p, size_t n) { return is_refused() ? NULL : __libc_realloc(p, n); }
void *memalign(size_t alignment, size_t n) { return is_refused() ? NULL : __libc_memalign(alignment, n); }
void *aligned_alloc(size_t alignment, size_t n) { return memalign(alignment, n); }

int posix_memalign(void **p, size_t alignment, size_t n) {
    *p = memalign(alignment, n);
    return *p ? 0 : ENOMEM;
}

/* Large buffers are pages of their own. */
void *mmap(void *at, size_t n, int protection, int flags, int file, off_t offset) {
    return is_refused() ? (void *)-1 : (void *)syscall(SYS_mmap, at, n, protection, flags, file, offset);
}

/* Refuses chosen allocations of one thread. Preloaded, every malloc of the process comes through here; glibc's own
 * functions do the work.
 *
 *   refuse(k, all)   the k-th allocation of the calling thread from now (k >= 1); with `all`, every later one too
 *   refused()        ends that; how many were refused
 *   n_allocations()  how many allocations the calling thread has made so far
 *   n_of_others()    how many all other threads have made
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

static long n_of_all;
static __thread long n_own;

long n_allocations(void) { return n_own; }

long n_of_others(void) { return __atomic_load_n(&n_of_all, __ATOMIC_SEQ_CST) - n_own; }

static int is_refused(void) {
    __atomic_add_fetch(&n_of_all, 1, __ATOMIC_SEQ_CST);
    ++n_own;
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

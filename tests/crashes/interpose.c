/* Counts what a process does to files below a folder, and ends it, or fails it, at the n-th event.

   Preloaded (LD_PRELOAD), so that libraries that write for themselves (Arrow, safetensors, tokenizers) are seen as well as Python.
   Events: open for writing, write, fsync, rename, remove, mkdir, truncate, link. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <unistd.h>

enum { RECORD, KILL, TORN, FAIL, ONCE };
static char prefix[PATH_MAX];
static size_t prefix_length;
static long wanted;
static int mode = RECORD, failure, record_to = -1, armed;
static atomic_long count;
static atomic_int torn, failed;

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* mode: 0 records every event to record_fd, 1 kills before the n-th, 2 kills in the middle of it (a write), 3 fails it and
   those after it with the error number, 4 fails it alone, or the next
   that can meet that error: of a write the half is done, and the next two fail. */
void crash_arm(const char *folder, long n, int how, int error, int record_fd) {
    snprintf(prefix, sizeof prefix, "%s/", folder);
    prefix_length = strlen(prefix);
    wanted = n, mode = how, failure = error, record_to = record_fd;
    atomic_store(&count, 0), atomic_store(&torn, 0), atomic_store(&failed, 0);
    armed = 1;
}
void crash_disarm(void) { armed = 0; }
long crash_count(void) { return atomic_load(&count); }

static void die(void) {
    syscall(SYS_kill, syscall(SYS_getpid), SIGKILL);
    for (;;) pause();
}

/* Whether a path (relative to a descriptor) is below the folder. */
static int below(int at, const char *path, char *full) {
    if (!armed || path == NULL) return 0;
    if (path[0] == '/') snprintf(full, PATH_MAX, "%s", path);
    else {
        char link[64], base[PATH_MAX];
        if (at == AT_FDCWD) snprintf(link, sizeof link, "/proc/self/cwd");
        else snprintf(link, sizeof link, "/proc/self/fd/%d", at);
        ssize_t size = readlink(link, base, sizeof base - 1);
        if (size < 0) return 0;
        base[size] = 0;
        if ((size_t)snprintf(full, PATH_MAX, "%s/%s", base, path) >= PATH_MAX) return 0;
    }
    return strncmp(full, prefix, prefix_length) == 0;
}
static int open_below(int fd, char *full) {
    char link[64];
    if (!armed) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = readlink(link, full, PATH_MAX - 1);
    if (size < 0) return 0;
    full[size] = 0;
    return strncmp(full, prefix, prefix_length) == 0;
}

/* Which errors befall which events: a full disk still lets go of files, and only opening needs a descriptor. */
static int befalls(const char *kind) {
    int opens = !strcmp(kind, "open"), reads = !strcmp(kind, "read"), grows = !strcmp(kind, "write") || !strcmp(kind, "mkdir");
    if (failure == ENOSPC) return opens || grows;
    if (failure == EMFILE) return opens || reads;
    return !reads;
}

/* Returns 0 to go on, -1 to fail with errno set, 1 to do half of it and die, 2 to do half of it. */
static int event(const char *kind, const char *path) {
    int writes = !strcmp(kind, "write");
    if (mode == FAIL && !befalls(kind)) return 0;
    if (!strcmp(kind, "read") && mode != FAIL) return 0;
    if (writes && atomic_load(&torn) > 0) {
        atomic_fetch_sub(&torn, 1);
        errno = failure;
        return -1;
    }
    long number = atomic_fetch_add(&count, 1) + 1;
    if (mode == RECORD) {
        char line[PATH_MAX + 32];
        int size = snprintf(line, sizeof line, "%s %s\n", kind, path + prefix_length);
        if (record_to >= 0) syscall(SYS_write, record_to, line, size);
        return 0;
    }
    if (mode == FAIL) {
        if (number < wanted) return 0;
        errno = failure;
        return -1;
    }
    if (mode == ONCE) {
        if (number < wanted || !befalls(kind) || atomic_exchange(&failed, 1)) return 0;
        atomic_store(&torn, writes ? 2 : 0);  /* who closes a file tries to write the rest again */
        errno = failure;
        return writes ? 2 : -1;
    }
    if (number != wanted) return 0;
    if (mode == TORN && !strcmp(kind, "write")) return 1;
    die();
    return 0;
}

static int opening(int at, const char *path, int flags) {
    char full[PATH_MAX];
    if (!below(at, path, full)) return 0;
    return event((flags & O_ACCMODE) != O_RDONLY || flags & O_CREAT ? "open" : "read", full);
}
#define MODE va_list list; va_start(list, flags); mode_t bits = flags & (O_CREAT | __O_TMPFILE) ? va_arg(list, mode_t) : 0; va_end(list)
#define OPEN(name) int name(const char *path, int flags, ...) { MODE; return opening(AT_FDCWD, path, flags) ? -1 : REAL(name)(path, flags, bits); }
#define OPENAT(name) int name(int at, const char *path, int flags, ...) { MODE; return opening(at, path, flags) ? -1 : REAL(name)(at, path, flags, bits); }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64)
#define FOPEN(name) FILE *name(const char *path, const char *how) { \
    return opening(AT_FDCWD, path, how[0] == 'r' && !strchr(how, '+') ? O_RDONLY : O_WRONLY) ? NULL : REAL(name)(path, how); }
FOPEN(fopen) FOPEN(fopen64)

#define WRITING(half) char full[PATH_MAX]; if (open_below(fd, full)) { int what = event("write", full); \
    if (what == 2) { ssize_t done = half; if (done > 0) return done; atomic_store(&torn, 0); errno = failure; return -1; } \
    if (what) { if (what < 0) return -1; half; die(); } }
ssize_t write(int fd, const void *data, size_t size) {
    WRITING(syscall(SYS_write, fd, data, size / 2));
    return REAL(write)(fd, data, size);
}
#define PWRITE(name) ssize_t name(int fd, const void *data, size_t size, off_t at) { \
    WRITING(syscall(SYS_pwrite64, fd, data, size / 2, at)); return REAL(name)(fd, data, size, at); }
PWRITE(pwrite) PWRITE(pwrite64)
ssize_t writev(int fd, const struct iovec *parts, int number) {
    WRITING(syscall(SYS_writev, fd, parts, number / 2));
    return REAL(writev)(fd, parts, number);
}
ssize_t sendfile(int to, int from, off_t *at, size_t size) {
    char full[PATH_MAX];
    if (open_below(to, full) && event("write", full)) return -1;
    return REAL(sendfile)(to, from, at, size);
}
ssize_t copy_file_range(int from, off64_t *in, int to, off64_t *out, size_t size, unsigned flags) {
    char full[PATH_MAX];
    if (open_below(to, full) && event("write", full)) return -1;
    return REAL(copy_file_range)(from, in, to, out, size, flags);
}
#define ON_DESCRIPTOR(name, kind, arguments, values) int name arguments { char full[PATH_MAX]; \
    if (open_below(fd, full) && event(kind, full)) return -1; return REAL(name) values; }
ON_DESCRIPTOR(fsync, "fsync", (int fd), (fd))
ON_DESCRIPTOR(fdatasync, "fsync", (int fd), (fd))
ON_DESCRIPTOR(ftruncate, "truncate", (int fd, off_t size), (fd, size))
ON_DESCRIPTOR(ftruncate64, "truncate", (int fd, off64_t size), (fd, size))
#define ON_PATH(name, kind, at, path, arguments, values) int name arguments { char full[PATH_MAX]; \
    if (below(at, path, full) && event(kind, full)) return -1; return REAL(name) values; }
ON_PATH(mkdir, "mkdir", AT_FDCWD, path, (const char *path, mode_t bits), (path, bits))
ON_PATH(mkdirat, "mkdir", at, path, (int at, const char *path, mode_t bits), (at, path, bits))
ON_PATH(unlink, "remove", AT_FDCWD, path, (const char *path), (path))
ON_PATH(unlinkat, "remove", at, path, (int at, const char *path, int flags), (at, path, flags))
ON_PATH(rmdir, "remove", AT_FDCWD, path, (const char *path), (path))
ON_PATH(rename, "rename", AT_FDCWD, to, (const char *from, const char *to), (from, to))
ON_PATH(renameat, "rename", there, to, (int here, const char *from, int there, const char *to), (here, from, there, to))
ON_PATH(renameat2, "rename", there, to, (int here, const char *from, int there, const char *to, unsigned flags), (here, from, there, to, flags))
ON_PATH(link, "link", AT_FDCWD, to, (const char *from, const char *to), (from, to))
ON_PATH(linkat, "link", there, to, (int here, const char *from, int there, const char *to, int flags), (here, from, there, to, flags))
ON_PATH(symlink, "link", AT_FDCWD, to, (const char *from, const char *to), (from, to))

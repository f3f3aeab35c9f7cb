// What code of newer systems asks of the C library and glibc 2.28 has not. Hidden: each library of ours has its own.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <link.h>
#include <pthread.h>
#include <stdio.h>
#include <sys/random.h>
#include <time.h>

// glibc 2.32. Zero is always right: reference counts are then atomic.
char __libc_single_threaded = 0;

// glibc 2.36, for std::random_device.
unsigned int arc4random(void) {
  unsigned int number = 0;
  while (getrandom(&number, sizeof(number), 0) != (ssize_t)sizeof(number)) {
  }
  return number;
}

// glibc 2.30: waits by any clock. A condition of the C++ library waits by the real one; who waits looks at its own clock again.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const struct timespec* until) {
  const long long billion = 1000000000;
  struct timespec now, real;
  clock_gettime(clock, &now);
  clock_gettime(CLOCK_REALTIME, &real);
  const long long left = (until->tv_sec - now.tv_sec) * billion + (until->tv_nsec - now.tv_nsec);
  if (left <= 0) return ETIMEDOUT;
  const long long end = real.tv_sec * billion + real.tv_nsec + left;
  const struct timespec real_end = {(time_t)(end / billion), (long)(end % billion)};
  return pthread_cond_timedwait(condition, mutex, &real_end);
}

// glibc 2.35: where the table is by which an exception at `address` goes up (the compiler's runtime library asks).
struct search {
  ElfW(Addr) address;
  struct dl_find_object* found;
};
static int look(struct dl_phdr_info* info, size_t size, void* argument) {
  struct search* search = argument;
  ElfW(Addr) begin = 0, end = 0, table = 0;
  (void)size;
  for (int i = 0; i < info->dlpi_phnum; ++i) {
    const ElfW(Phdr)* part = &info->dlpi_phdr[i];
    const ElfW(Addr) at = info->dlpi_addr + part->p_vaddr;
    if (part->p_type == PT_GNU_EH_FRAME) table = at;
    if (part->p_type == PT_LOAD && search->address - at < part->p_memsz) {
      begin = at;
      end = at + part->p_memsz;
    }
  }
  if (end == 0 || table == 0) return 0;
  *search->found = (struct dl_find_object){.dlfo_map_start = (void*)begin, .dlfo_map_end = (void*)end, .dlfo_eh_frame = (void*)table};
  return 1;
}
int _dl_find_object(void* address, struct dl_find_object* found) {
  struct search search = {(ElfW(Addr))address, found};
  return dl_iterate_phdr(look, &search) == 1 ? 0 : -1;
}

// Archives that are not made for shared libraries reach their own data alone: this is the C library's stream by a name of ours.
extern FILE _IO_2_1_stderr_;
#undef stderr
FILE* stderr = (FILE*)&_IO_2_1_stderr_;

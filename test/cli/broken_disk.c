// Preloaded into ranks: the disk of files without a name dies, or the process does in the midst of a
// write. DSTRAIN_BREAK="eio|kill|read:RANK:N:MARK" takes the Nth write (or read) of that rank; the
// first one to do so makes the file MARK, and nobody does after that. With N 0 nothing breaks, and
// MARK gets the number of reads.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

typedef ssize_t (*Write)(int, const void*, size_t, off64_t);
typedef ssize_t (*Read)(int, void*, size_t, off64_t);

static atomic_long calls;
static atomic_int broken;
static char how[8], mark[4096];
static long number;

__attribute__((constructor)) static void read_order(void) {
  const char* order = getenv("DSTRAIN_BREAK");
  const char* own = getenv("RANK");
  int rank = -1;
  if (order == NULL || own == NULL ||
      sscanf(order, "%7[^:]:%d:%ld:%4095s", how, &rank, &number, mark) != 4 || atoi(own) != rank)
    how[0] = 0;
}

__attribute__((destructor)) static void tell(void) {
  if (how[0] == 0 || number != 0 || calls == 0) return;
  FILE* file = fopen(mark, "w");
  if (file == NULL) return;
  fprintf(file, "%ld", calls);
  fclose(file);
}

static int breaks(int fd, int read) {
  struct stat facts;
  if (how[0] == 0 || read != (strcmp(how, "read") == 0)) return 0;
  if (fstat(fd, &facts) != 0 || facts.st_nlink != 0) return 0;
  if (broken) return 1;
  if (++calls != number) return 0;
  const int made = open(mark, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
  if (made < 0) return 0;
  close(made);
  if (strcmp(how, "kill") == 0) raise(SIGKILL);
  broken = 1;
  return 1;
}

ssize_t pwrite64(int fd, const void* from, size_t bytes, off64_t offset) {
  const Write real = (Write)dlsym(RTLD_NEXT, "pwrite64");
  if (!breaks(fd, 0)) return real(fd, from, bytes, offset);
  errno = EIO;
  return -1;
}

ssize_t pread64(int fd, void* into, size_t bytes, off64_t offset) {
  const Read real = (Read)dlsym(RTLD_NEXT, "pread64");
  if (!breaks(fd, 1)) return real(fd, into, bytes, offset);
  errno = EIO;
  return -1;
}

ssize_t pwrite(int fd, const void* from, size_t bytes, off_t offset) {
  return pwrite64(fd, from, bytes, offset);
}

ssize_t pread(int fd, void* into, size_t bytes, off_t offset) {
  return pread64(fd, into, bytes, offset);
}

// Preloaded into ranks: the disk of files without a name dies, or the process does in the midst of a
// write. DSTRAIN_BREAK="eio|kill:RANK:N:MARK" takes the Nth write of that rank; the first one to do
// so makes the file MARK, and nobody does after that.
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

static atomic_long writes;
static atomic_int broken;

ssize_t pwrite64(int fd, const void* from, size_t bytes, off64_t offset) {
  static _Atomic(Write) real;
  if (real == NULL) real = (Write)dlsym(RTLD_NEXT, "pwrite64");
  const char* order = getenv("DSTRAIN_BREAK");
  const char* own = getenv("RANK");
  struct stat facts;
  char how[8] = "", mark[4096] = "";
  int rank = 0;
  long number = 0;
  if (order == NULL || own == NULL || fstat(fd, &facts) != 0 || facts.st_nlink != 0 ||
      sscanf(order, "%7[^:]:%d:%ld:%4095s", how, &rank, &number, mark) != 4 || atoi(own) != rank)
    return real(fd, from, bytes, offset);
  if (broken || ++writes == number) {
    if (!broken) {
      const int made = open(mark, O_CREAT | O_EXCL | O_WRONLY | O_CLOEXEC, 0600);
      if (made < 0) return real(fd, from, bytes, offset);
      close(made);
      if (strcmp(how, "kill") == 0) raise(SIGKILL);
      broken = 1;
    }
    errno = EIO;
    return -1;
  }
  return real(fd, from, bytes, offset);
}

ssize_t pwrite(int fd, const void* from, size_t bytes, off_t offset) {
  return pwrite64(fd, from, bytes, offset);
}

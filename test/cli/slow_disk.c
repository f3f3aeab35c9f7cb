// Preloaded into ranks: fsync takes DSTRAIN_SLOW_FSYNC seconds, as on a disk that is behind.
#include <stdlib.h>
#include <unistd.h>

int fsync(int fd) {
  const char* seconds = getenv("DSTRAIN_SLOW_FSYNC");
  if (seconds != NULL) sleep((unsigned)atoi(seconds));
  return fdatasync(fd);
}

// The whole of lib/dstrain/dstrain-pmix: hands the first line of rank 0's standard input to every
// process of its PMIx namespace (pmix_exchange.h). Usage: dstrain-pmix SECONDS, after which it dies
// by itself.
//
// libpmix is opened by name when it runs: systems without it start dstrain, too, and none of its
// versions from 2 on is asked for what it lacks. It comes from Slurm's or Open MPI's packages.
//
// One line on standard output: "ok RANK SIZE LOCAL_RANK LOCAL_SIZE VALUE", "unreachable" without a
// PMIx server, or "failed: REASON". It stays until the end of its standard input, since the others
// fetch the value from a rank 0 that is still there; that end may come before the value, too. No
// fence: one would hang, or report success, when a process has died (seen with PMIx 4.2.2 under
// Slurm 22.05).
#include <dlfcn.h>
#include <pmix.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

namespace {

constexpr const char* kKey = "dstrain.value";
constexpr const char* kLibrary = "libpmix.so.2";
constexpr unsigned kFarewell_s = 5;

struct Pmix {
  decltype(&PMIx_Init) init = nullptr;
  decltype(&PMIx_Finalize) finalize = nullptr;
  decltype(&PMIx_Put) put = nullptr;
  decltype(&PMIx_Commit) commit = nullptr;
  decltype(&PMIx_Get) get = nullptr;
  decltype(&PMIx_Error_string) error_string = nullptr;
} pmix;

template <typename Function>
bool find(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(::dlsym(library, name));
  return function != nullptr;
}

/// False, with the reason printed, where libpmix is missing or is none. Its plugins ask it for
/// symbols, hence RTLD_GLOBAL.
bool open_library() {
  void* library = ::dlopen(kLibrary, RTLD_NOW | RTLD_GLOBAL);
  if (library != nullptr && find(library, "PMIx_Init", pmix.init) &&
      find(library, "PMIx_Finalize", pmix.finalize) && find(library, "PMIx_Put", pmix.put) &&
      find(library, "PMIx_Commit", pmix.commit) && find(library, "PMIx_Get", pmix.get) &&
      find(library, "PMIx_Error_string", pmix.error_string))
    return true;
  std::printf("failed: %s (LD_LIBRARY_PATH names its folder)\n", ::dlerror());
  return false;
}

void fail(const char* call, pmix_status_t status) {
  std::printf("failed: %s: %s\n", call, pmix.error_string(status));
}

std::string read_line() {
  std::string line;
  for (int c = std::getchar(); c != EOF && c != '\n'; c = std::getchar()) {
    line += static_cast<char>(c);
  }
  return line;
}

/// A fact of the namespace (its size) or of `rank`; `otherwise` when the server does not say.
/// Values are never freed: libpmix before 4 has no function for it, and this program ends at once.
unsigned get_number(const pmix_proc_t& process, const char* key, unsigned otherwise) {
  pmix_value_t* value = nullptr;
  if (pmix.get(&process, key, nullptr, 0, &value) != PMIX_SUCCESS) return otherwise;
  if (value->type == PMIX_UINT32) return value->data.uint32;
  if (value->type == PMIX_UINT16) return value->data.uint16;
  return otherwise;
}

/// False, with the reason printed, when rank 0's value cannot be had.
bool exchange(const pmix_proc_t& self, std::string& text) {
  if (self.rank == 0) {
    pmix_value_t value{};
    value.type = PMIX_STRING;
    value.data.string = text.data();
    pmix_status_t status = pmix.put(PMIX_GLOBAL, kKey, &value);
    if (status == PMIX_SUCCESS) status = pmix.commit();
    if (status != PMIX_SUCCESS) fail("PMIx_Put", status);
    return status == PMIX_SUCCESS;
  }
  pmix_proc_t zero;
  PMIX_LOAD_PROCID(&zero, self.nspace, 0);
  pmix_value_t* value = nullptr;
  pmix_status_t status = pmix.get(&zero, kKey, nullptr, 0, &value);
  // Now and then mpirun's server says so instead of waiting for rank 0. Our parent ends us.
  while (status == PMIX_ERR_NOT_FOUND) {
    usleep(20'000);
    status = pmix.get(&zero, kKey, nullptr, 0, &value);
  }
  if (status != PMIX_SUCCESS || value->type != PMIX_STRING) {
    fail("PMIx_Get of rank 0's address", status);
    return false;
  }
  text = value->data.string;
  return true;
}

/// Ends this program at the end of its standard input. Slurm kills the whole step when a process of
/// PMIx ends without PMIx_Finalize.
void end_with_input() {
  while (std::getchar() != EOF) {
  }
  alarm(kFarewell_s);
  pmix.finalize(nullptr, 0);
  _exit(0);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) return 64;
  alarm(static_cast<unsigned>(std::strtoul(argv[1], nullptr, 10)));
  std::string text = read_line();
  if (!open_library()) return 1;
  pmix_proc_t self;
  const pmix_status_t status = pmix.init(&self, nullptr, 0);
  if (status == PMIX_ERR_UNREACH) {
    std::puts("unreachable");
    return 0;
  }
  if (status != PMIX_SUCCESS) {
    fail("PMIx_Init", status);
    return 1;
  }
  std::thread end(end_with_input);
  if (exchange(self, text)) {
    pmix_proc_t everybody;
    PMIX_LOAD_PROCID(&everybody, self.nspace, PMIX_RANK_WILDCARD);
    std::printf("ok %u %u %u %u %s\n", self.rank, get_number(everybody, PMIX_JOB_SIZE, 1),
                get_number(self, PMIX_LOCAL_RANK, 0), get_number(everybody, PMIX_LOCAL_SIZE, 1),
                text.c_str());
  }
  std::fflush(stdout);
  alarm(0);
  end.join();
}

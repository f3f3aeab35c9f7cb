#include <dlfcn.h>
#include <fmt/format.h>

#include "engine/base/error.h"
#include "engine/base/input_file.h"
#include "engine/base/module.h"
#include "engine/base/torch_folder.h"
#include "engine/data/text/parquet.h"

namespace dstrain::text {
namespace {

namespace fs = std::filesystem;
constexpr const char* kLibrary = "libdstrain_parquet.so";

ParquetEntry load() {
  const fs::path library = find_module(kLibrary);
  // Loaded by path first: then no variable of the loader has to name pyarrow's folder.
  for (const char* part : {"pyarrow/libarrow.so.2600", "pyarrow/libparquet.so.2600"}) {
    const fs::path file = beside_torch(part);
    if (file.has_parent_path()) (void)::dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  void* handle = ::dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (handle == nullptr) {
    throw Error(
        ErrorKind::usage,
        fmt::format("parquet files need {}, which cannot be loaded: {}", kLibrary, ::dlerror()),
        "install pyarrow " DSTRAIN_PYARROW_VERSION
        " beside torch (scripts/setup, or pip), or use the JSON files");
  }
  // The cast is how POSIX hands out functions.
  const auto entry = reinterpret_cast<ParquetEntry>(::dlsym(handle, kParquetEntry));
  DSTRAIN_CHECK(entry != nullptr, library.string() + " lacks " + kParquetEntry);
  return entry;
}

}  // namespace

std::unique_ptr<ParquetReader> open_parquet(const fs::path& file,
                                            const std::vector<ParquetColumn>& columns) {
  static const ParquetEntry open = load();  // an Error leaves it for the next call
  std::string error;
  std::unique_ptr<ParquetReader> reader(open(open_input_file(file).release(), columns, error));
  if (reader == nullptr) {
    throw Error(ErrorKind::data, fmt::format("{}: {}", file.string(), error),
                "the file is damaged, cut off or of another data set");
  }
  return reader;
}

void for_each_parquet_row(
    const fs::path& file, const std::vector<ParquetColumn>& columns,
    const std::function<void(const ParquetRow&, std::int64_t number, double share)>& row) {
  const auto reader = open_parquet(file, columns);
  std::vector<std::vector<ParquetValue>> values;
  std::string error;
  ParquetRow out(columns.size());
  std::int64_t number = 0;
  while (reader->next(values, error)) {
    for (std::size_t i = 0; i < values.front().size(); ++i) {
      for (std::size_t c = 0; c < columns.size(); ++c) out[c] = &values[c][i];
      ++number;
      row(out, number, static_cast<double>(number) / static_cast<double>(reader->rows()));
    }
  }
  if (error.empty()) return;
  throw Error(ErrorKind::data, fmt::format("{}: after record {}: {}", file.string(), number, error),
              "the file is damaged or cut off; fetch it again");
}

}  // namespace dstrain::text

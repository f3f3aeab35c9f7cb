#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain::text {

enum class ParquetType {
  text,      ///< a string
  texts,     ///< a list of strings
  integers,  ///< a list of whole numbers
  bytes,     ///< as they are
  integer,   ///< a whole number
  json       ///< anything, as JSON text
};

/// A column by its place in the schema: "question", "answers.text".
struct ParquetColumn {
  std::string name;
  ParquetType type = ParquetType::text;
  bool optional = false;  ///< all null where the file lacks it
};

/// One value; `null` where it, or an entry of its list, is missing.
struct ParquetValue {
  bool null = false;
  std::vector<std::string_view> texts = {};  ///< one entry for text, bytes and json
  std::vector<std::int64_t> integers = {};   ///< one entry for integer
};

/// A column of the schema, whatever is read of it.
struct ParquetField {
  std::string name;
  std::string type;      ///< as Arrow says it
  bool image = false;    ///< a struct with `bytes`, as the library `datasets` stores a file
  bool integer = false;  ///< whole numbers
};

/// Rows of a parquet file in their order, a part at a time; without columns its schema alone.
class ParquetReader {
 public:
  virtual ~ParquetReader() = default;
  [[nodiscard]] virtual std::int64_t rows() const = 0;
  [[nodiscard]] virtual std::vector<ParquetField> fields() const = 0;
  /// What the file's schema says under this name, such as "huggingface"; empty where it is silent.
  [[nodiscard]] virtual std::string metadata(const std::string& name) const = 0;
  /// Values [column][row] of the next rows, valid until the next call; false at the end. An
  /// unreadable part sets `error`, which is empty otherwise.
  [[nodiscard]] virtual bool next(std::vector<std::vector<ParquetValue>>& values,
                                  std::string& error) = 0;
};

/// Opens `file` through libdstrain_parquet.so, which is loaded on first use since it brings
/// libarrow of the pyarrow wheel. Error{data} names the file and the column that is missing or of
/// another type; Error{usage} says what to install where the library cannot be loaded.
[[nodiscard]] std::unique_ptr<ParquetReader> open_parquet(
    const std::filesystem::path& file, const std::vector<ParquetColumn>& columns);

/// Calls `row` for each row of the file: its values, its number from 1, and the share of the file
/// read. Error{data} as above.
using ParquetRow = std::vector<const ParquetValue*>;
void for_each_parquet_row(
    const std::filesystem::path& file, const std::vector<ParquetColumn>& columns,
    const std::function<void(const ParquetRow&, std::int64_t number, double share)>& row);

/// What the library exports under kParquetEntry. It takes the descriptor `file` over. A file that
/// cannot be read gives null and sets `error`; nothing is thrown across the border.
using ParquetEntry = ParquetReader* (*)(int file, const std::vector<ParquetColumn>& columns,
                                        std::string& error);
inline constexpr const char* kParquetEntry = "dstrain_open_parquet";

}  // namespace dstrain::text

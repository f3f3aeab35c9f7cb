// The whole of libdstrain_parquet.so: parquet.h by Apache Arrow.
#include <arrow/api.h>
#include <arrow/io/file.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <parquet/arrow/reader.h>
#include <parquet/arrow/schema.h>
#include <parquet/exception.h>

#include <algorithm>
#include <deque>
#include <utility>

#include "engine/data/text/parquet.h"

namespace dstrain::text {
namespace {

constexpr std::int64_t kRowsAtOnce = 64;
/// Limit on pages and the rows at once; 64 records of the greatest length fit.
constexpr std::int64_t kMaxMemory = std::int64_t{2} << 30;

const char* type_name(ParquetType type) {
  switch (type) {
    case ParquetType::text:
      return "text";
    case ParquetType::texts:
      return "a list of texts";
    case ParquetType::integers:
      return "a list of whole numbers";
    case ParquetType::bytes:
      return "bytes";
    case ParquetType::integer:
      return "a whole number";
    case ParquetType::json:
      return "text, numbers, lists or structs of them";
  }
  return "";
}

bool is_text(const arrow::DataType& type) {
  if (type.id() == arrow::Type::DICTIONARY) {
    return is_text(*static_cast<const arrow::DictionaryType&>(type).value_type());
  }
  return type.id() == arrow::Type::STRING || type.id() == arrow::Type::LARGE_STRING;
}

bool is_list(const arrow::DataType& type) {
  return type.id() == arrow::Type::LIST || type.id() == arrow::Type::LARGE_LIST;
}

bool is_bytes(const arrow::DataType& type) {
  return type.id() == arrow::Type::BINARY || type.id() == arrow::Type::LARGE_BINARY;
}

bool is_whole_number(const arrow::DataType& type) {
  return type.id() == arrow::Type::INT32 || type.id() == arrow::Type::INT64;
}

/// A file as the library `datasets` stores it: struct<bytes: binary, path: string>.
bool is_image(const arrow::DataType& type) {
  if (type.id() != arrow::Type::STRUCT) return false;
  const auto bytes = static_cast<const arrow::StructType&>(type).GetFieldByName("bytes");
  return bytes != nullptr && is_bytes(*bytes->type());
}

bool fits(const arrow::DataType& type, ParquetType wanted) {
  if (wanted == ParquetType::text) return is_text(type);
  if (wanted == ParquetType::bytes) return is_bytes(type);
  if (wanted == ParquetType::integer) return is_whole_number(type);
  if (wanted == ParquetType::json) return true;
  if (!is_list(type)) return false;
  const arrow::DataType& entry = *static_cast<const arrow::BaseListType&>(type).value_type();
  return wanted == ParquetType::texts ? is_text(entry) : is_whole_number(entry);
}

/// Text or bytes `i` of a column; false where it is null.
bool text_at(const arrow::Array& column, std::int64_t i, std::string_view& text) {
  if (column.IsNull(i)) return false;
  switch (column.type_id()) {
    case arrow::Type::STRING:
    case arrow::Type::BINARY:
      text = static_cast<const arrow::BinaryArray&>(column).GetView(i);
      return true;
    case arrow::Type::LARGE_STRING:
    case arrow::Type::LARGE_BINARY:
      text = static_cast<const arrow::LargeBinaryArray&>(column).GetView(i);
      return true;
    default: {
      const auto& coded = static_cast<const arrow::DictionaryArray&>(column);
      return text_at(*coded.dictionary(), coded.GetValueIndex(i), text);
    }
  }
}

bool integer_at(const arrow::Array& column, std::int64_t i, std::int64_t& value) {
  if (column.IsNull(i)) return false;
  value = column.type_id() == arrow::Type::INT32
              ? static_cast<const arrow::Int32Array&>(column).Value(i)
              : static_cast<const arrow::Int64Array&>(column).Value(i);
  return true;
}

void fill_list(const arrow::Array& entries, std::int64_t first, std::int64_t end, ParquetType type,
               ParquetValue& value) {
  for (std::int64_t i = first; i < end; ++i) {
    std::string_view text;
    std::int64_t integer = 0;
    if (type == ParquetType::texts) {
      value.null |= !text_at(entries, i, text);
      value.texts.push_back(text);
    } else {
      value.null |= !integer_at(entries, i, integer);
      value.integers.push_back(integer);
    }
  }
}

ParquetValue value_at(const arrow::Array& column, std::int64_t row, ParquetType type) {
  ParquetValue value;
  if (type == ParquetType::text || type == ParquetType::bytes) {
    std::string_view text;
    value.null = !text_at(column, row, text);
    value.texts.push_back(text);
  } else if (type == ParquetType::integer) {
    std::int64_t integer = 0;
    value.null = !integer_at(column, row, integer);
    value.integers.push_back(integer);
  } else if (column.IsNull(row)) {
    value.null = true;
  } else if (column.type_id() == arrow::Type::LIST) {
    const auto& list = static_cast<const arrow::ListArray&>(column);
    fill_list(*list.values(), list.value_offset(row), list.value_offset(row + 1), type, value);
  } else {
    const auto& list = static_cast<const arrow::LargeListArray&>(column);
    fill_list(*list.values(), list.value_offset(row), list.value_offset(row + 1), type, value);
  }
  return value;
}

void append_quoted(std::string& json, std::string_view text) {
  json += '"';
  for (const char c : text) {
    if (c == '"' || c == '\\') json += '\\';
    if (static_cast<unsigned char>(c) < ' ')
      json += fmt::format("\\u{:04x}", c);
    else
      json += c;
  }
  json += '"';
}

/// Entry `i` as JSON. Members of a struct that are null are left out: `datasets` gives every struct
/// of a column the members of all.
void append_json(std::string& json, const arrow::Array& column, std::int64_t i) {
  const arrow::DataType& type = *column.type();
  std::string_view text;
  if (column.IsNull(i)) {
    json += "null";
  } else if (is_text(type) || is_bytes(type)) {
    (void)text_at(column, i, text);
    append_quoted(json, text);
  } else if (type.id() == arrow::Type::LIST || type.id() == arrow::Type::LARGE_LIST) {
    const auto entries = [&](const auto& list) {
      for (auto k = list.value_offset(i); k < list.value_offset(i + 1); ++k) {
        if (k > list.value_offset(i)) json += ',';
        append_json(json, *list.values(), k);
      }
    };
    json += '[';
    if (type.id() == arrow::Type::LIST)
      entries(static_cast<const arrow::ListArray&>(column));
    else
      entries(static_cast<const arrow::LargeListArray&>(column));
    json += ']';
  } else if (type.id() == arrow::Type::STRUCT) {
    const auto& parts = static_cast<const arrow::StructArray&>(column);
    bool first = true;
    json += '{';
    for (int part = 0; part < parts.num_fields(); ++part) {
      const auto member = parts.field(part);
      if (member->IsNull(i)) continue;
      if (!std::exchange(first, false)) json += ',';
      append_quoted(json, type.field(part)->name());
      json += ':';
      append_json(json, *member, i);
    }
    json += '}';
  } else {
    const std::string value = column.GetScalar(i).ValueOrDie()->ToString();
    const bool plain = type.id() == arrow::Type::BOOL || arrow::is_primitive(type.id());
    // JSON has neither nan nor inf.
    if (plain && !arrow::is_temporal(type.id()) && value.find_first_of("in") == std::string::npos)
      json += value;
    else
      append_quoted(json, value);
  }
}

std::string problem_of(const arrow::Status& status) {
  if (!status.IsOutOfMemory() && !status.IsCapacityError()) return status.message();
  return fmt::format("a text, or {} rows together, need more than {} GiB of memory", kRowsAtOnce,
                     kMaxMemory >> 30);
}

/// The field at "a.b", through structs; null when there is none.
std::shared_ptr<arrow::Field> find_field(const arrow::FieldVector& fields, std::string_view name) {
  const std::string_view first = name.substr(0, name.find('.'));
  const auto at = std::ranges::find_if(fields, [&](const auto& f) { return f->name() == first; });
  if (at == fields.end()) return nullptr;
  if (first.size() == name.size()) return *at;
  if ((*at)->type()->id() != arrow::Type::STRUCT) return nullptr;
  return find_field((*at)->type()->fields(), name.substr(first.size() + 1));
}

class ArrowReader final : public ParquetReader {
 public:
  /// Returns what is wrong; empty when the file can be read.
  std::string open(int descriptor, std::vector<ParquetColumn> columns) {
    columns_ = std::move(columns);
    auto file = arrow::io::ReadableFile::Open(descriptor);
    if (!file.ok()) return file.status().message();
    // Pages are read as they are needed: a group of rows may be larger than the memory.
    parquet::ReaderProperties pages(&memory_);
    pages.enable_buffered_stream();
    parquet::ArrowReaderProperties rows;
    rows.set_batch_size(kRowsAtOnce);
    rows.set_pre_buffer(false);
    parquet::arrow::FileReaderBuilder builder;
    if (const auto status = builder.Open(*file, pages); !status.ok())
      return "not a parquet file: " + status.message();
    builder.memory_pool(&memory_)->properties(rows);
    if (const auto status = builder.Build(&file_); !status.ok())
      return "not a parquet file: " + status.message();
    if (const auto status = file_->GetSchema(&schema_); !status.ok()) return status.message();
    rows_ = file_->parquet_reader()->metadata()->num_rows();
    if (auto wrong = check(*schema_); !wrong.empty()) return wrong;
    if (columns_.empty()) return "";
    auto batches = file_->GetRecordBatchReader(all_row_groups(), leaves());
    if (!batches.ok()) return batches.status().message();
    batches_ = std::move(*batches);
    return "";
  }

  [[nodiscard]] std::int64_t rows() const override { return rows_; }

  [[nodiscard]] std::vector<ParquetField> fields() const override {
    std::vector<ParquetField> fields;
    for (const auto& field : schema_->fields())
      fields.push_back({field->name(), field->type()->ToString(), is_image(*field->type()),
                        is_whole_number(*field->type())});
    return fields;
  }

  [[nodiscard]] std::string metadata(const std::string& name) const override {
    const auto all = file_->parquet_reader()->metadata()->key_value_metadata();
    return all == nullptr ? "" : all->Get(name).ValueOr("");
  }

  [[nodiscard]] bool next(std::vector<std::vector<ParquetValue>>& values,
                          std::string& error) override {
    error.clear();
    try {
      if (const auto status = batches_->ReadNext(&batch_); !status.ok()) {
        error = problem_of(status);
      } else if (batch_ != nullptr) {
        error = read(values);
      }
    } catch (const parquet::ParquetStatusException& failure) {
      error = problem_of(failure.status());
    } catch (const std::exception& failure) {
      error = failure.what();
    }
    return error.empty() && batch_ != nullptr;
  }

 private:
  [[nodiscard]] std::string check(const arrow::Schema& schema) const {
    for (const ParquetColumn& column : columns_) {
      const auto field = find_field(schema.fields(), column.name);
      if (field == nullptr) {
        if (column.optional) continue;
        return fmt::format("there is no column {}; it has {}", column.name,
                           fmt::join(schema.field_names(), ", "));
      }
      if (!fits(*field->type(), column.type)) {
        return fmt::format("column {} is {}, expected {}", column.name, field->type()->ToString(),
                           type_name(column.type));
      }
    }
    return "";
  }

  [[nodiscard]] std::vector<int> all_row_groups() const {
    std::vector<int> groups(static_cast<std::size_t>(file_->num_row_groups()));
    for (std::size_t i = 0; i < groups.size(); ++i) groups[i] = static_cast<int>(i);
    return groups;
  }

  /// Stored columns below the ones wanted: "answers.text" is stored as answers.text.list.element.
  [[nodiscard]] std::vector<int> leaves() const {
    std::vector<int> found;
    const parquet::SchemaDescriptor& schema = *file_->parquet_reader()->metadata()->schema();
    for (int i = 0; i < schema.num_columns(); ++i) {
      const std::string path = schema.Column(i)->path()->ToDotString() + ".";
      const auto wanted = [&](const ParquetColumn& c) { return path.starts_with(c.name + "."); };
      if (std::ranges::any_of(columns_, wanted)) found.push_back(i);
    }
    return found;
  }

  /// The array of `name` in the batch, structs taken apart; null when the file has none.
  [[nodiscard]] std::shared_ptr<arrow::Array> find_array(std::string_view name) const {
    std::string_view first = name.substr(0, name.find('.'));
    auto array = batch_->GetColumnByName(std::string(first));
    while (array != nullptr && first.size() < name.size()) {
      name.remove_prefix(first.size() + 1);
      first = name.substr(0, name.find('.'));
      // Flattened: an entry below a null struct is null.
      const auto& parent = static_cast<const arrow::StructArray&>(*array);
      const int index = parent.struct_type()->GetFieldIndex(std::string(first));
      array = parent.GetFlattenedField(index, arrow::default_memory_pool()).ValueOr(nullptr);
    }
    return array;
  }

  [[nodiscard]] std::string read(std::vector<std::vector<ParquetValue>>& values) {
    values.assign(columns_.size(), {});
    arrays_.clear();
    json_.clear();
    for (std::size_t c = 0; c < columns_.size(); ++c) {
      const auto array = find_array(columns_[c].name);
      if (array == nullptr && !columns_[c].optional)
        return "column " + columns_[c].name + " is gone";
      if (array != nullptr) {
        if (const auto status = array->Validate(); !status.ok()) return status.message();
      }
      for (std::int64_t row = 0; row < batch_->num_rows(); ++row) {
        if (array == nullptr) {
          values[c].push_back({.null = true});
        } else if (columns_[c].type == ParquetType::json) {
          append_json(json_.emplace_back(), *array, row);
          values[c].push_back({.null = array->IsNull(row), .texts = {json_.back()}});
        } else {
          values[c].push_back(value_at(*array, row, columns_[c].type));
        }
      }
      arrays_.push_back(array);
    }
    return "";
  }

  // First, as all below is freed into it.
  arrow::CappedMemoryPool memory_{arrow::default_memory_pool(), kMaxMemory};
  std::vector<ParquetColumn> columns_;
  std::unique_ptr<parquet::arrow::FileReader> file_;
  std::shared_ptr<arrow::Schema> schema_;
  std::unique_ptr<arrow::RecordBatchReader> batches_;
  std::shared_ptr<arrow::RecordBatch> batch_;          ///< what the values handed out point into
  std::vector<std::shared_ptr<arrow::Array>> arrays_;  ///< the same, taken out of structs
  std::deque<std::string> json_;  ///< that values point into
  std::int64_t rows_ = 0;
};

}  // namespace
}  // namespace dstrain::text

extern "C" __attribute__((visibility("default"))) dstrain::text::ParquetReader*
dstrain_open_parquet(int file, const std::vector<dstrain::text::ParquetColumn>& columns,
                     std::string& error) {
  auto reader = std::make_unique<dstrain::text::ArrowReader>();
  try {
    error = reader->open(file, columns);
  } catch (const std::exception& failure) {
    error = failure.what();
  }
  return error.empty() ? reader.release() : nullptr;
}

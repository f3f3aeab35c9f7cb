#pragma once

#include <cstdint>
#include <string>
#include <vector>

/// Zips and pickles as torch.save writes them, and such as it never would.
namespace dstrain::test {

inline std::string little(std::uint64_t value, int bytes) {
  std::string text;
  for (int i = 0; i < bytes; ++i) text += static_cast<char>(value >> (8 * i) & 0xFFU);
  return text;
}

struct ZipRecord {
  std::string name, data;
  std::uint16_t method = 0;  ///< 8: deflated
  std::uint16_t flags = 0;
  std::int64_t size = -1;    ///< what the directory says; -1: the data's
  std::int64_t header = -1;  ///< the same of where the record begins
};

/// A zip of these records; with the fields of zip64 where `wide`.
inline std::string zip_of(const std::vector<ZipRecord>& records, bool wide = false) {
  std::string file, directory;
  for (const ZipRecord& record : records) {
    const std::uint64_t size =
        record.size < 0 ? record.data.size() : static_cast<std::uint64_t>(record.size);
    const std::uint64_t header =
        record.header < 0 ? file.size() : static_cast<std::uint64_t>(record.header);
    const std::string fixed = little(record.flags, 2) + little(record.method, 2) + little(0, 8);
    const std::string padding = "FB" + little(6, 2) + std::string(6, 'Z');
    file += "PK\3\4" + little(20, 2) + fixed + little(size, 4) + little(size, 4) +
            little(record.name.size(), 2) + little(padding.size(), 2) + record.name + padding +
            record.data;
    const std::string extra =
        wide ? little(1, 2) + little(24, 2) + little(size, 8) + little(size, 8) + little(header, 8)
             : "";
    const std::string narrow = wide ? little(0xFFFFFFFF, 4) : little(size, 4);
    directory += "PK\1\2" + little(20, 2) + little(20, 2) + fixed + narrow + narrow +
                 little(record.name.size(), 2) + little(extra.size(), 2) + little(0, 10) +
                 (wide ? little(0xFFFFFFFF, 4) : little(header, 4)) + record.name + extra;
  }
  const std::uint64_t begin = file.size(), end = begin + directory.size();
  file += directory;
  if (wide) {
    file += "PK\6\6" + little(44, 8) + little(0, 12) + little(records.size(), 8) +
            little(records.size(), 8) + little(directory.size(), 8) + little(begin, 8);
    file += "PK\6\7" + little(0, 4) + little(end, 8) + little(1, 4);
    return file + "PK\5\6" + little(0, 8) + little(0xFFFFFFFF, 4) + little(0xFFFFFFFF, 4) +
           little(0, 2);
  }
  return file + "PK\5\6" + little(0, 4) + little(records.size(), 2) + little(records.size(), 2) +
         little(directory.size(), 4) + little(begin, 4) + little(0, 2);
}

/// A text of a pickle.
inline std::string pickled(const std::string& text) { return "X" + little(text.size(), 4) + text; }
inline std::string pickled(std::int64_t number) {
  return "\x8a\x08" + little(static_cast<std::uint64_t>(number), 8);
}
inline std::string pickled(const std::vector<std::int64_t>& numbers) {
  std::string tuple = "(";
  for (const std::int64_t number : numbers) tuple += pickled(number);
  return tuple + "t";
}
/// A tensor of FloatStorage, or of another class of torch.
inline std::string pickled_tensor(const std::string& key, const std::vector<std::int64_t>& shape,
                                  const std::vector<std::int64_t>& strides, std::int64_t offset,
                                  std::int64_t elements,
                                  const std::string& storage = "FloatStorage") {
  return "ctorch._utils\n_rebuild_tensor_v2\n((" + pickled("storage") + "ctorch\n" + storage +
         "\n" + pickled(key) + pickled("cpu") + pickled(elements) + "tQ" + pickled(offset) +
         pickled(shape) + pickled(strides) + "\x89" + "ccollections\nOrderedDict\n)RtR";
}
/// Protocol 2, around what makes one value.
inline std::string program_of(const std::string& value) { return "\x80\x02" + value + "."; }

}  // namespace dstrain::test

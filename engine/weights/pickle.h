#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace dstrain {

class PickleValue;

/// The numbers of one storage of a torch file, which lie in the record data/KEY.
struct PickleStorage {
  std::string key;
  std::string dtype;  ///< as safetensors spells it ("F32"); "U8" of a storage without a type
  std::int64_t elements = 0;
};

/// A tensor of a torch file: a view of a storage. The strides stay inside it.
struct PickleTensor {
  std::shared_ptr<const PickleStorage> storage;
  std::string dtype;
  std::int64_t offset = 0;  ///< elements of `dtype` from the storage's start
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  ///< elements

  [[nodiscard]] bool contiguous() const;
};

/// A value of a pickle. Of any class or function that is not known (see Pickle) it is an `opaque`
/// with what it was called with: nothing of a file is ever executed. Containers may hold
/// themselves, so a walk down bounds the depth.
class PickleValue {
 public:
  enum class Kind {
    none,
    boolean,
    integer,
    real,
    text,
    bytes,
    list,
    tuple,
    set,
    dict,
    storage,
    tensor,
    opaque,
  };
  Kind kind = Kind::none;
  std::int64_t integer = 0;  ///< also of a boolean
  double real = 0;
  std::string text;  ///< UTF-8; of bytes as they are; of an opaque "module.name"
  /// Items of a list, tuple or set; of a dict key and value by turns; what was added to an opaque.
  std::vector<const PickleValue*> items;
  const PickleValue* arguments = nullptr;      ///< of an opaque, where it was called
  const PickleValue* state = nullptr;          ///< of an opaque, as __setstate__ got it
  std::shared_ptr<const PickleTensor> tensor;  ///< of tensor; of storage only its `storage`

  /// Value of a key of a dict, a text or bytes, as which Python 2 wrote texts, or of an attribute
  /// of an opaque; null where there is none. The last of equal keys holds.
  [[nodiscard]] const PickleValue* find(std::string_view key) const;
  [[nodiscard]] bool is(Kind wanted) const { return kind == wanted; }
  /// The opaque value, called or not, of a class or function "module.name".
  [[nodiscard]] bool is_opaque(std::string_view name) const {
    return kind == Kind::opaque && text == name;
  }
};

/// What a value is, for messages: "a tuple".
[[nodiscard]] const char* kind_text(PickleValue::Kind kind);

/// "torch.float32" as safetensors spells it ("F32"); empty for any other text.
[[nodiscard]] std::string_view safetensors_dtype(std::string_view torch_name);

/// Bytes of one element of such a type.
[[nodiscard]] std::int64_t dtype_width(std::string_view dtype);

/// Bounds on pickles, far above what real files hold.
struct PickleLimits {
  std::size_t values = std::size_t{1} << 24;  ///< made by the program
  std::size_t stack = std::size_t{1} << 26;   ///< and marks, and the memo
  std::size_t depth = 1000;  ///< containers inside each other, when they are filled
  std::size_t text_bytes = std::size_t{64} << 20;  ///< of one text
};

/// The value that a pickle of protocol 2 to 5 describes, read by a stack machine that executes
/// nothing (Python's Lib/pickletools.py has the opcodes). A short list of names builds values:
/// OrderedDict and defaultdict a dict, torch.Size a tuple, _rebuild_tensor_v2, _v3,
/// _rebuild_parameter and _rebuild_from_type_v2 a tensor, storages by persistent id a storage.
class Pickle {
 public:
  /// Error{data} names `where`, the byte and what is wrong there.
  Pickle(std::span<const std::byte> program, std::string where, const PickleLimits& limits = {});
  Pickle(Pickle&&) noexcept = default;
  Pickle& operator=(Pickle&&) noexcept = default;

  [[nodiscard]] const PickleValue& root() const { return *root_; }
  /// Bytes of the program that were read, its STOP included.
  [[nodiscard]] std::size_t size() const { return size_; }

 private:
  std::deque<PickleValue> values_;  ///< owns all; a deque, so that none moves
  const PickleValue* root_ = nullptr;
  std::size_t size_ = 0;
};

}  // namespace dstrain

#include <fmt/format.h>

#include <array>
#include <memory>
#include <utility>

#include "engine/base/printable.h"
#include "engine/weights/pickle_machine.h"

namespace dstrain {
namespace {

constexpr std::size_t kMaxDims = 64;

/// A typed storage class of torch, as safetensors spells its type.
std::string_view storage_dtype(std::string_view name) {
  constexpr auto kTypes = std::to_array<std::pair<std::string_view, std::string_view>>({
      {"torch.FloatStorage", "F32"},
      {"torch.HalfStorage", "F16"},
      {"torch.BFloat16Storage", "BF16"},
      {"torch.DoubleStorage", "F64"},
      {"torch.LongStorage", "I64"},
      {"torch.IntStorage", "I32"},
      {"torch.ShortStorage", "I16"},
      {"torch.CharStorage", "I8"},
      {"torch.ByteStorage", "U8"},
      {"torch.BoolStorage", "BOOL"},
      {"torch.storage.UntypedStorage", "U8"},
  });
  for (const auto& [storage, dtype] : kTypes) {
    if (storage == name) return dtype;
  }
  return {};
}

}  // namespace

std::string_view safetensors_dtype(std::string_view torch_name) {
  constexpr auto kTypes = std::to_array<std::pair<std::string_view, std::string_view>>({
      {"torch.float32", "F32"},
      {"torch.float16", "F16"},
      {"torch.bfloat16", "BF16"},
      {"torch.float64", "F64"},
      {"torch.int64", "I64"},
      {"torch.int32", "I32"},
      {"torch.int16", "I16"},
      {"torch.int8", "I8"},
      {"torch.uint8", "U8"},
      {"torch.uint16", "U16"},
      {"torch.uint32", "U32"},
      {"torch.uint64", "U64"},
      {"torch.bool", "BOOL"},
      {"torch.float8_e4m3fn", "F8_E4M3"},
      {"torch.float8_e5m2", "F8_E5M2"},
  });
  for (const auto& [torch, dtype] : kTypes) {
    if (torch == torch_name) return dtype;
  }
  return {};
}

std::int64_t dtype_width(std::string_view dtype) {
  if (dtype == "F64" || dtype == "I64" || dtype == "U64") return 8;
  if (dtype == "F32" || dtype == "I32" || dtype == "U32") return 4;
  return dtype == "F16" || dtype == "BF16" || dtype == "I16" || dtype == "U16" ? 2 : 1;
}

PickleValue* PickleMachine::call_known(const std::string& function, PickleValue* arguments) {
  const auto& items = arguments->items;
  if (function == "collections.OrderedDict" || function == "collections.defaultdict" ||
      function == "builtins.dict")
    return make(Kind::dict);
  if ((function == "torch.Size" || function == "builtins.tuple") && items.size() == 1 &&
      (items[0]->kind == Kind::tuple || items[0]->kind == Kind::list)) {
    spend(sizeof(void*) * items[0]->items.size());
    PickleValue* value = make(Kind::tuple);
    value->items = items[0]->items;
    return value;
  }
  // How protocol 2 writes bytes: text in which each character is one byte.
  if (function == "_codecs.encode" && items.size() == 2 && items[0]->kind == Kind::text &&
      items[1]->kind == Kind::text && items[1]->text == "latin1") {
    PickleValue* value = make(Kind::bytes);
    const std::string& text = items[0]->text;
    spend(text.size());
    for (std::size_t i = 0; i < text.size(); ++i) {
      auto c = static_cast<std::uint8_t>(text[i]);
      if (c >= 0x80 && i + 1 < text.size())
        c = static_cast<std::uint8_t>(static_cast<unsigned>(c) << 6U |
                                      (static_cast<unsigned>(text[++i]) & 0x3FU));
      value->text += static_cast<char>(c);
    }
    return value;
  }
  if (function == "torch._utils._rebuild_tensor_v2" || function == "torch._utils._rebuild_tensor")
    return rebuild_tensor(*arguments, false);
  if (function == "torch._utils._rebuild_tensor_v3") return rebuild_tensor(*arguments, true);
  const bool wrapped = function == "torch._utils._rebuild_parameter" ||
                       function == "torch._utils._rebuild_parameter_with_state";
  if (wrapped && !items.empty() && items[0]->kind == Kind::tensor) {
    PickleValue* value = make(Kind::tensor);
    value->tensor = items[0]->tensor;
    return value;
  }
  if (function == "torch._tensor._rebuild_from_type_v2" && items.size() == 4 &&
      items[0]->kind == Kind::opaque && items[0]->arguments == nullptr &&
      items[2]->kind == Kind::tuple && items[0]->text != function) {
    return call_known(items[0]->text, const_cast<PickleValue*>(items[2]));
  }
  return nullptr;
}

std::vector<std::int64_t> PickleMachine::numbers_of(const PickleValue& value,
                                                    const char* what) const {
  if ((value.kind != Kind::tuple && value.kind != Kind::list) || value.items.size() > kMaxDims)
    fail(fmt::format("a tensor whose {} is no tuple of at most {} numbers", what, kMaxDims));
  std::vector<std::int64_t> numbers;
  for (const PickleValue* item : value.items) {
    if (item->kind != Kind::integer || item->integer < 0)
      fail(fmt::format("a tensor with a {} that is not from 0", what));
    numbers.push_back(item->integer);
  }
  return numbers;
}

/// `typed`: of a storage without a type; the last argument is the tensor's.
PickleValue* PickleMachine::rebuild_tensor(const PickleValue& arguments, bool typed) {
  const auto& items = arguments.items;
  if (items.size() < (typed ? 7 : 4) || items[0]->kind != Kind::storage ||
      items[1]->kind != Kind::integer || items[1]->integer < 0)
    fail("a tensor that is not built from a storage");
  const auto storage = items[0]->tensor->storage;
  PickleTensor tensor{.storage = storage,
                      .dtype = storage->dtype,
                      .offset = items[1]->integer,
                      .shape = numbers_of(*items[2], "shape"),
                      .strides = numbers_of(*items[3], "stride")};
  if (typed) {
    tensor.dtype = items[6]->kind == Kind::opaque ? safetensors_dtype(items[6]->text) : "";
    if (tensor.dtype.empty()) fail("a tensor of an unknown type");
  }
  if (tensor.shape.size() != tensor.strides.size())
    fail(fmt::format("a tensor of {} sizes and {} strides", tensor.shape.size(),
                     tensor.strides.size()));
  // The last element that is reached, without overflow.
  constexpr std::int64_t kMax = std::int64_t{1} << 60;
  const std::int64_t available =
      typed ? storage->elements / dtype_width(tensor.dtype) : storage->elements;
  std::int64_t last = tensor.offset, elements = 1;
  bool empty = false, inside = last <= kMax;
  for (std::size_t i = 0; i < tensor.shape.size() && inside; ++i) {
    const std::int64_t size = tensor.shape[i], stride = tensor.strides[i];
    if (size == 0) empty = true;
    if (size == 0) continue;
    inside = elements <= kMax / size && (stride == 0 || size - 1 <= (kMax - last) / stride);
    if (!inside) break;
    elements *= size;
    last += (size - 1) * stride;
    inside = last <= kMax;
  }
  if (!inside || (!empty && last >= available))
    fail(fmt::format("a tensor that reaches beyond the {} elements of its storage", available));
  spend(2 * sizeof(std::int64_t) * tensor.shape.size());
  PickleValue* value = make(Kind::tensor);
  value->tensor = std::make_shared<const PickleTensor>(std::move(tensor));
  return value;
}

/// ("storage", class, key, device, elements)
PickleValue* PickleMachine::persistent(const PickleValue& id) {
  const auto& items = id.items;
  if (id.kind != Kind::tuple || items.size() != 5 || items[0]->kind != Kind::text ||
      items[0]->text != "storage" || items[1]->kind != Kind::opaque ||
      items[2]->kind != Kind::text || items[4]->kind != Kind::integer || items[4]->integer < 0)
    fail("a persistent id that is no storage");
  const std::string_view dtype = storage_dtype(items[1]->text);
  if (dtype.empty()) fail(fmt::format("a storage of {}", shown(items[1]->text)));
  spend(items[2]->text.size());
  PickleTensor tensor;
  tensor.storage = std::make_shared<const PickleStorage>(
      PickleStorage{items[2]->text, std::string(dtype), items[4]->integer});
  PickleValue* value = make(Kind::storage);
  value->tensor = std::make_shared<const PickleTensor>(std::move(tensor));
  return value;
}

}  // namespace dstrain

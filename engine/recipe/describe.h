#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "engine/recipe/choices.h"
#include "engine/recipe/recipe.h"

namespace dstrain {

/// All that is known of one field.
struct Field {
  std::string_view text = {};  ///< one sentence: what it is and what a special value means
  std::string_view unit = {};
  std::optional<double> min = {};
  std::optional<double> max = {};
  bool above_min = false;  ///< `min` itself is not allowed
  bool below_max = false;  ///< `max` itself is not allowed
  std::string_view source = {};
  bool required = false;
  std::string_view unless = {};        ///< key of the same section without which it is required
  std::span<const Choice> names = {};  ///< what a text may be; empty: anything
  std::size_t length = 0;              ///< of a list; 0: any
  bool lines = false;                  ///< of text: it may have line ends and tabs
  bool path = false;                   ///< of text: "~/" in front is the home folder
  bool clock = false;                  ///< of an interval: it may be a time or auto
};

/// An enumeration, or a list of one, without its type.
struct EnumSlot {
  void* at;
  int (*get)(const void* at);
  void (*set)(void* at, int value);
  std::span<const Choice> all;
};
struct EnumListSlot {
  void* at;
  std::vector<int> (*get)(const void* at);
  void (*set)(void* at, const std::vector<int>& values);
  std::span<const Choice> all;
};
/// The place in a struct that a field fills.
using Slot = std::variant<int*, long*, double*, bool*, std::string*, Interval*, std::vector<int>*,
                          std::vector<double>*, std::vector<std::string>*, EnumSlot, EnumListSlot>;

class Visitor;
/// A list of structs, without their type.
struct ListSlot {
  void* at;
  std::size_t (*size)(const void* at);
  void (*resize)(void* at, std::size_t size);
  /// The fields of one of them; of a new one, where they are only explained.
  void (*describe)(void* at, std::size_t index, Visitor& visitor);
  void (*describe_new)(Visitor& visitor);
};
/// The only place where the fields are named: each calls `visitor.field`, `visitor.section` or
/// `visitor.list` once per member, in the order in which people read them.
void describe(Recipe& recipe, Visitor& visitor);
void describe(ModelConfig& model, Visitor& visitor);
void describe(LoraConfig& lora, Visitor& visitor);
void describe(ExpertsConfig& experts, Visitor& visitor);
void describe(BatchNormConfig& batch_norm, Visitor& visitor);
void describe(DataConfig& data, Visitor& visitor);
void describe(MemberConfig& member, Visitor& visitor);
void describe(NormalizeConfig& normalize, Visitor& visitor);
void describe(BatchConfig& batch, Visitor& visitor);
void describe(OptimizerConfig& optimizer, Visitor& visitor);
void describe(PreferenceConfig& preference, Visitor& visitor);
void describe(EmaConfig& ema, Visitor& visitor);
void describe(PrecisionConfig& precision, Visitor& visitor);
void describe(LossScaleConfig& loss_scale, Visitor& visitor);
void describe(ParallelConfig& parallel, Visitor& visitor);
void describe(StagesConfig& stages, Visitor& visitor);
void describe(ZeroConfig& zero, Visitor& visitor);
void describe(MemoryConfig& memory, Visitor& visitor);
void describe(OffloadConfig& offload, Visitor& visitor);
void describe(RunConfig& run, Visitor& visitor);
void describe(PhaseConfig& phase, Visitor& visitor);
void describe(CheckpointConfig& checkpoint, Visitor& visitor);
void describe(BestConfig& best, Visitor& visitor);
void describe(TraceConfig& trace, Visitor& visitor);
void describe(MetricsConfig& metrics, Visitor& visitor);

/// Walks over the described fields; a reader fills the slots, a writer reads them.
class Visitor {
 public:
  template <class T>
  void field(std::string_view name, T& value, const Field& about) {
    visit(name, slot(value), about);
  }
  template <class Config>
  void section(std::string_view name, Config& config, std::string_view text) {
    enter(name, text);
    describe(config, *this);
    leave();
  }

  template <class Config>
  void list(std::string_view name, std::vector<Config>& items, std::string_view text) {
    using Items = std::vector<Config>;
    visit_list(name,
               {.at = &items,
                .size = [](const void* at) { return static_cast<const Items*>(at)->size(); },
                .resize = [](void* at, std::size_t size) { static_cast<Items*>(at)->resize(size); },
                .describe =
                    [](void* at, std::size_t index, Visitor& visitor) {
                      dstrain::describe(static_cast<Items*>(at)->at(index), visitor);
                    },
                .describe_new =
                    [](Visitor& visitor) {
                      Config defaults;
                      dstrain::describe(defaults, visitor);
                    }},
               text);
  }

 protected:
  ~Visitor() = default;
  virtual void visit(std::string_view name, const Slot& slot, const Field& about) = 0;
  virtual void enter(std::string_view name, std::string_view text) = 0;
  virtual void leave() = 0;
  virtual void visit_list(std::string_view name, const ListSlot& list, std::string_view text) = 0;

 private:
  template <class T>
  static Slot slot(T& value) {
    if constexpr (std::is_enum_v<T>) {
      return EnumSlot{
          .at = &value,
          .get = [](const void* at) { return static_cast<int>(*static_cast<const T*>(at)); },
          .set = [](void* at, int v) { *static_cast<T*>(at) = static_cast<T>(v); },
          .all = choices(T{})};
    } else {
      return &value;
    }
  }
  template <class E>
  requires std::is_enum_v<E>
  static Slot slot(std::vector<E>& values) {
    return EnumListSlot{.at = &values,
                        .get =
                            [](const void* at) {
                              std::vector<int> result;
                              for (const E value : *static_cast<const std::vector<E>*>(at)) {
                                result.push_back(static_cast<int>(value));
                              }
                              return result;
                            },
                        .set =
                            [](void* at, const std::vector<int>& values_in) {
                              auto& target = *static_cast<std::vector<E>*>(at);
                              target.clear();
                              for (const int value : values_in)
                                target.push_back(static_cast<E>(value));
                            },
                        .all = choices(E{})};
  }
};

}  // namespace dstrain

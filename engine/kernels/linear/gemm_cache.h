#pragma once

#include <c10/core/ScalarType.h>

#include <array>
#include <compare>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace dstrain {

/// What an algorithm is chosen for: out [m, n] = a [m, k] b [k, n], its operands' dtypes and
/// layouts. Whether the product is added to `out` does not matter to the choice.
struct GemmKey {
  std::int64_t m = 0, n = 0, k = 0;
  /// Elements from one row to the next, or of a transposed operand from one column to the next.
  std::int64_t a_stride = 0, b_stride = 0, out_stride = 0;
  bool a_transposed = false, b_transposed = false;
  c10::ScalarType a_type{}, b_type{}, out_type{};
  bool bias = false;      ///< a vector [n] is added to each row
  bool row_sums = false;  ///< the sums of a's rows are returned too
  bool fast = false;      ///< FP8 sums may be short
  int alignment = 16;     ///< of all operands, in bytes; 16 also stands for more

  friend auto operator<=>(const GemmKey&, const GemmKey&) = default;
  /// Names every field, for files and errors.
  [[nodiscard]] std::string text() const;
};

/// How a matrix product ran fastest: what cuBLASLt calls an algorithm, as opaque words.
struct GemmChoice {
  std::array<std::uint64_t, 8> algorithm{};
  double time_s = 0;  ///< of one product when it was chosen

  friend bool operator==(const GemmChoice&, const GemmChoice&) = default;
};

/// Choices of one kind of GPU and one version of cuBLASLt, kept in a JSON file so that the next
/// process measures nothing. Processes may share the file: additions are merged under a lock, and
/// the first choice for a key stays, so that all of them end up with the same one. What cannot be
/// read counts as empty, what cannot be written is kept in memory only (with one warning).
class GemmCache {
 public:
  /// An empty path: in memory only. `shipped`: choices that hold where the file has none, JSON like
  /// it; what is not readable counts as none.
  explicit GemmCache(std::filesystem::path file, std::string_view shipped = {});

  [[nodiscard]] std::optional<GemmChoice> find(std::string_view key) const;
  /// The choice that is in force afterwards: `choice`, or what another process has put there first.
  GemmChoice add(const std::string& key, const GemmChoice& choice);
  /// Replaces a choice that does not work, here and in the file.
  void replace(const std::string& key, const GemmChoice& choice);

 private:
  using Choices = std::map<std::string, GemmChoice, std::less<>>;

  [[nodiscard]] Choices read() const;
  void merge(const std::string& key, const GemmChoice& choice, bool replace);

  std::filesystem::path file_;
  Choices choices_, shipped_;
  bool warned_ = false;
};

/// "gemm-nvidia-h200-130100.json".
[[nodiscard]] std::string gemm_cache_name(std::string_view gpu, std::size_t version);
/// $DSTRAIN_CACHE/NAME, or ~/.cache/dstrain/NAME; empty when neither variable is set.
[[nodiscard]] std::filesystem::path gemm_cache_file(std::string_view gpu, std::size_t version);

}  // namespace dstrain

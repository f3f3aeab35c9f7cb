#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace dstrain {

/// MetaMath's rules of a right answer, as its authors' scripts have them: what stands behind the
/// last "The answer is: " counts. Yu et al. 2023, arXiv:2309.12284; scripts eval_gsm8k.py,
/// eval_math.py and util.py of meta-math/MetaMath. Where a script would fail, no answer is right.

/// The first number there, a fraction divided, rounded half to even: 1/2 and 0.5 are 0, 1,234,567
/// is 1234. Nothing where there is none.
[[nodiscard]] std::optional<double> gsm_answer(std::string_view text);

/// What stands there up to ".\n", without a last dot and spaces around. Nothing without the mark.
[[nodiscard]] std::optional<std::string> math_answer(std::string_view text);

/// Whether two expressions are equal once units, spaces, \left and the like are gone and short
/// forms of fractions and roots are written out (is_equiv of util.py, which is Hendrycks et al.
/// 2021, arXiv:2103.03874, but for a percent sign without a backslash).
[[nodiscard]] bool are_equal_math(std::string_view one, std::string_view other);

}  // namespace dstrain

#include "engine/kernels/linear/output_gradient.h"

#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <utility>

namespace dstrain::ops {
namespace {

/// detach() hands it on, as the executor does between blocks.
struct Needs final : c10::BackendMeta {
  explicit Needs(const GradientNeeds& all) : needs(all) {}
  GradientNeeds needs;
};

struct Findings final : c10::BackendMeta {
  Findings(GradientFindings all, std::int64_t version)
      : findings(std::move(all)), of_version(version) {}
  GradientFindings findings;
  std::int64_t of_version;
};

template <typename Meta>
const Meta* meta_of(const at::Tensor& tensor) {
  return dynamic_cast<const Meta*>(tensor.unsafeGetTensorImpl()->get_backend_meta());
}

}  // namespace

void set_needs(const at::Tensor& output, const GradientNeeds& needs) {
  if (!needs.column_sums && !needs.maxima) return;
  output.unsafeGetTensorImpl()->set_backend_meta(c10::make_intrusive<Needs>(needs));
}

GradientNeeds needs_of(const at::Tensor& output) {
  const Needs* said = meta_of<Needs>(output);
  return said == nullptr ? GradientNeeds{} : said->needs;
}

void copy_needs(const at::Tensor& output, const at::Tensor& copy) {
  set_needs(copy, needs_of(output));
}

void set_findings(const at::Tensor& gradient, const GradientFindings& findings) {
  if (!findings.column_sums.defined() && !findings.maxima.defined()) return;
  gradient.unsafeGetTensorImpl()->set_backend_meta(
      c10::make_intrusive<Findings>(findings, gradient._version()));
}

GradientFindings findings_of(const at::Tensor& gradient) {
  const Findings* said = meta_of<Findings>(gradient);
  return said == nullptr || said->of_version != gradient._version() ? GradientFindings{}
                                                                    : said->findings;
}

}  // namespace dstrain::ops

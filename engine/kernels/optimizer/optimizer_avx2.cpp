#include "engine/kernels/optimizer/optimizer_loops.h"

namespace dstrain::kernels::cpu {

using namespace dstrain::optimizer;

template void run_loop<VectorUnit::avx2, AdamW>(const OptimizerUpdate&, const AdamW::Element&,
                                                std::int64_t, std::int64_t);
template void run_loop<VectorUnit::avx2, Sgd>(const OptimizerUpdate&, const Sgd::Element&,
                                              std::int64_t, std::int64_t);
template void run_loop<VectorUnit::avx2, Lion>(const OptimizerUpdate&, const Lion::Element&,
                                               std::int64_t, std::int64_t);
template void run_loop<VectorUnit::avx2, MuonMomentum>(const OptimizerUpdate&,
                                                       const MuonMomentum::Element&, std::int64_t,
                                                       std::int64_t);
template void run_loop<VectorUnit::avx2, MuonStep>(const OptimizerUpdate&, const MuonStep::Element&,
                                                   std::int64_t, std::int64_t);
template void run_loop<VectorUnit::avx2, Rmsprop>(const OptimizerUpdate&, const Rmsprop::Element&,
                                                  std::int64_t, std::int64_t);
template void run_loop<VectorUnit::avx2, RmspropTensorflow>(const OptimizerUpdate&,
                                                            const RmspropTensorflow::Element&,
                                                            std::int64_t, std::int64_t);
template void run_loop<VectorUnit::avx2, Average>(const OptimizerUpdate&, const Average::Element&,
                                                  std::int64_t, std::int64_t);

}  // namespace dstrain::kernels::cpu

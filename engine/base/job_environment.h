#pragma once

/// Names of the environment variables by which an agent tells a rank who it is. The first six are
/// those of torchrun, so that `dstrain engine` also runs as a plain rank under torchrun, srun or
/// mpirun.
namespace dstrain::job_environment {

inline constexpr const char* kRank = "RANK";
inline constexpr const char* kLocalRank = "LOCAL_RANK";
inline constexpr const char* kWorldSize = "WORLD_SIZE";
inline constexpr const char* kLocalWorldSize = "LOCAL_WORLD_SIZE";
inline constexpr const char* kMasterAddress = "MASTER_ADDR";
inline constexpr const char* kMasterPort = "MASTER_PORT";

/// Rank 0 only: inherited listening socket of MASTER_PORT, bound by the agent so that no other job
/// can take the port.
inline constexpr const char* kMasterFd = "DSTRAIN_MASTER_FD";
/// 64 hexadecimal digits that the ranks of one job share (engine/base/handshake.h); with it the
/// rendezvous is dstrain's own authenticated store, without it c10d's.
inline constexpr const char* kJobSecret = "DSTRAIN_JOB_SECRET";
/// Counts the starts of the job from 0: a late rank of an earlier start is refused.
inline constexpr const char* kAttempt = "DSTRAIN_ATTEMPT";
/// Run directory made by the controller; a plain rank makes its own.
inline constexpr const char* kRunDirectory = "DSTRAIN_RUN_DIR";
/// File of engine/base/rank_record.h that this rank keeps up to date.
inline constexpr const char* kRankRecord = "DSTRAIN_RANK_RECORD";
/// Rank 0 only: inherited pipe for one JSON object per line about progress (see
/// launcher/README.md); the controller draws the live line from it. Without it the rank prints
/// plain lines.
inline constexpr const char* kReportFd = "DSTRAIN_REPORT_FD";

}  // namespace dstrain::job_environment

#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

namespace dstrain::test {

/// Nanoseconds as a trace writes them: decimal microseconds.
inline std::string as_us(std::int64_t ns) {
  const bool negative = ns < 0;
  const std::uint64_t size =
      negative ? 0 - static_cast<std::uint64_t>(ns) : static_cast<std::uint64_t>(ns);
  return fmt::format("{}{}.{:03}", negative ? "-" : "", size / 1000, size % 1000);
}

/// The text of a trace as Kineto writes it, made event by event.
class MadeTrace {
 public:
  explicit MadeTrace(int rank, int world_size = 1, std::string host = "n0",
                     std::string run = "made", std::int64_t base_ns = 1'700'000'000'000'000'000)
      : rank_(rank),
        text_(fmt::format(
            "{{\n  \"schemaVersion\": 1,\n  \"deviceProperties\": [\n    {{\"id\": 0, \"name\": "
            "\"H200 \\\"x\\\"\"}}\n  ],\n"
            "  \"distributedInfo\": {{\"backend\": \"nccl\", \"rank\": {}, \"world_size\": {}}},\n"
            "  \"dstrain\": {{\"run\": \"{}\", \"host\": \"{}\", \"program\": \"abc\", "
            "\"incomplete\": \"\"}},\n"
            "  \"baseTimeNanoseconds\": {},\n  \"displayTimeUnit\": \"ms\",\n  \"traceEvents\": [",
            rank, world_size, run, host, base_ns)) {}

  /// A whole object.
  void add(const std::string& event) { text_ += (num_events_++ == 0 ? "\n  " : ",\n  ") + event; }
  void slice(const std::string& category, const std::string& name, const std::string& pid,
             const std::string& tid, std::int64_t start_ns, std::int64_t duration_ns,
             const std::string& args = "") {
    add(
        fmt::format("{{\n    \"ph\": \"X\", \"cat\": \"{}\", \"name\": \"{}\", \"pid\": {}, "
                    "\"tid\": {},\n    \"ts\": {}, \"dur\": {},\n    \"args\": {{{}}}\n  }}",
                    category, name, pid, tid, as_us(start_ns), as_us(duration_ns), args));
  }
  /// A kernel, its launch and the arrow between them.
  void kernel(const std::string& name, int stream, std::int64_t start_ns, std::int64_t duration_ns,
              std::int64_t correlation, const std::string& more = "") {
    const std::string id = std::to_string(correlation);
    slice("cuda_runtime", "cudaLaunchKernel", "4242", "4242", start_ns - 5000, 2000,
          "\"correlation\": " + id);
    slice("kernel", name, "0", std::to_string(stream), start_ns, duration_ns,
          fmt::format("\"device\": 0, \"stream\": {}, \"correlation\": {}{}{}", stream, id,
                      more.empty() ? "" : ", ", more));
    add(
        fmt::format("{{\"ph\": \"s\", \"id\": {}, \"pid\": 4242, \"tid\": 4242, \"ts\": {}, "
                    "\"cat\": \"ac2g\", \"name\": \"ac2g\"}}",
                    id, as_us(start_ns - 5000)));
    add(
        fmt::format("{{\"ph\": \"f\", \"id\": {}, \"pid\": 0, \"tid\": {}, \"ts\": {}, \"cat\": "
                    "\"ac2g\", \"name\": \"ac2g\", \"bp\": \"e\"}}",
                    id, stream, as_us(start_ns)));
    num_kernels_ += 1;
  }
  void collective(const std::string& operation, int sequence, std::int64_t start_ns,
                  std::int64_t duration_ns, std::int64_t correlation) {
    kernel(
        "ncclDevKernel_" + operation, 9, start_ns, duration_ns, correlation,
        fmt::format("\"Collective name\": \"{}\", \"Process Group Name\": \"0\", \"Process Group "
                    "Ranks\": \"[0, 1]\", \"Group size\": 2, \"Seq\": {}",
                    operation, sequence));
  }
  void names() {
    add(R"({"name": "process_name", "ph": "M", "ts": 0, "pid": 0, "tid": 0, "args": {"name": "python"}})");
    add(R"({"name": "thread_name", "ph": "M", "ts": 0, "pid": 0, "tid": 7, "args": {"name": "stream 7"}})");
    add(R"({"name": "thread_name", "ph": "M", "ts": 0, "pid": 0, "tid": 7, "args": {"name": "stream 7"}})");
  }

  [[nodiscard]] std::string text() const {
    return text_ + "\n  ],\n  \"traceName\": \"made.json\",\n  \"stop\": {\"a\": [1, {}]}\n}\n";
  }
  [[nodiscard]] std::string cut() const { return text_; }
  [[nodiscard]] std::size_t num_events() const { return num_events_; }
  [[nodiscard]] std::size_t num_kernels() const { return num_kernels_; }
  [[nodiscard]] int rank() const { return rank_; }

 private:
  int rank_;
  std::string text_;
  std::size_t num_events_ = 0;
  std::size_t num_kernels_ = 0;
};

}  // namespace dstrain::test

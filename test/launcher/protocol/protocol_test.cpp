#include "launcher/protocol/protocol.h"

#include "engine/base/error.h"
#include "launcher/protocol/wire.h"
#include "test/support/catch.h"

using namespace dstrain;
using namespace dstrain::launcher;

namespace {

Frame only_frame(const std::string& bytes) {
  FrameDecoder decoder;
  decoder.append(bytes);
  return decoder.next().value();
}

}  // namespace

TEST_CASE("frames survive any cut of the stream", "[launcher][protocol]") {
  const std::string stream = encode(FrameType::report, "first") + encode(FrameType::ready, "") +
                             encode(FrameType::console, std::string("a\0b", 3));
  const std::size_t piece = GENERATE(1U, 2U, 3U, 5U, 7U, 100U);
  FrameDecoder decoder;
  std::vector<Frame> frames;
  for (std::size_t at = 0; at < stream.size(); at += piece) {
    decoder.append(std::string_view(stream).substr(at, piece));
    while (auto frame = decoder.next()) frames.push_back(*frame);
  }
  REQUIRE(frames.size() == 3);
  CHECK(frames[0].payload == "first");
  CHECK(frames[1].type == FrameType::ready);
  CHECK(frames[2].payload == std::string("a\0b", 3));
}

TEST_CASE("a length above the limit or an unknown type ends the connection",
          "[launcher][protocol]") {
  const std::string bytes =
      GENERATE(std::string("\xff\xff\xff\x7f\x01", 5), std::string("\x01\x00\x80\x00\x01", 5),
               std::string("\0\0\0\0\x63", 5), std::string("HTTP/1.1 400"));
  FrameDecoder decoder;
  decoder.append(bytes);
  REQUIRE_THROWS_AS(decoder.next(), Error);
}

TEST_CASE("every byte of arguments and environment arrives", "[launcher][protocol]") {
  const std::string odd = "'\" $(x) ; \n \xc3\xbc \xff";
  PrepareJob job{.run_directory = "/r",
                 .working_directory = odd,
                 .command = {"a", "", odd},
                 .environment = {"X=" + odd},
                 .host = "h",
                 .first_rank = 3,
                 .num_ranks = 2,
                 .world_size = 8,
                 .cores = 5,
                 .rendezvous_address = "127.0.0.1"};
  const PrepareJob got = unpack<PrepareJob>(only_frame(encode(job)));
  CHECK(got.working_directory == odd);
  CHECK(got.command == job.command);
  CHECK(got.environment == job.environment);
  CHECK(got.first_rank == 3);
  CHECK(got.cores == 5);
}

TEST_CASE("a rank's state arrives whole", "[launcher][protocol]") {
  RankState state;
  state.rank = 3;
  state.host = "h2";
  state.pid = 4711;
  state.step = 12;
  state.action = "norm";
  state.section = "step";
  state.progress = 99;
  state.stalled_ns = 61;
  state.limit_ns = 60;
  state.collectives = 57;
  state.in_collective = true;
  state.collective = "all_reduce(norm), 4 ranks, 40 B";
  state.stack = "a\nb\n";
  state.process_state = 'T';
  const Frame frame = only_frame(encode(state));
  const RankState got = unpack<RankState>(frame);
  CHECK(got.rank == 3);
  CHECK(got.host == "h2");
  CHECK(got.pid == 4711);
  CHECK(got.step == 12);
  CHECK(got.action == "norm");
  CHECK(got.section == "step");
  CHECK(got.progress == 99);
  CHECK(got.stalled_ns == 61);
  CHECK(got.limit_ns == 60);
  CHECK(got.collectives == 57);
  CHECK(got.in_collective);
  CHECK(got.collective == state.collective);
  CHECK(got.stack == state.stack);
  CHECK(got.process_state == 'T');
}

TEST_CASE("the pace of each rank arrives, and a count without ranks is refused",
          "[launcher][protocol]") {
  const PaceMessage pace{{{.rank = 2, .steps = 20, .steps_ns = 5, .waited_ns = 3}, {.rank = 7}}};
  const PaceMessage got = unpack<PaceMessage>(only_frame(encode(pace)));
  REQUIRE(got.ranks.size() == 2);
  CHECK(got.ranks[0].rank == 2);
  CHECK(got.ranks[0].steps == 20);
  CHECK(got.ranks[0].steps_ns == 5);
  CHECK(got.ranks[0].waited_ns == 3);
  CHECK(got.ranks[1].rank == 7);
  const std::string payload = WireWriter().number(std::int64_t{1} << 40).take();
  CHECK_THROWS_AS(unpack<PaceMessage>({FrameType::pace, payload}), Error);
}

TEST_CASE("a rank's end arrives with its last lines", "[launcher][protocol]") {
  RankEnd end;
  end.rank = 5;
  end.signal = 9;
  end.step = 17;
  end.error_time_ns = 1234567890123456789;
  end.out_of_memory = true;
  end.memory_limit_bytes = std::int64_t{1} << 40;
  end.last_lines = {"a", "", "b"};
  const RankEnd got = unpack<RankEnd>(only_frame(encode(end)));
  CHECK(got.rank == 5);
  CHECK(got.signal == 9);
  CHECK(got.step == 17);
  CHECK(got.error_time_ns == end.error_time_ns);
  CHECK(got.out_of_memory);
  CHECK(got.memory_limit_bytes == end.memory_limit_bytes);
  CHECK(got.last_lines == end.last_lines);
}

TEST_CASE("a frame is not taken for another message than it is", "[launcher][protocol]") {
  const Frame ping = only_frame(encode(Ping{5}));
  CHECK(unpack<Ping>(ping).clock_ns == 5);
  CHECK_THROWS_AS(unpack<AgentDone>(ping), Error);
  CHECK_THROWS_AS(unpack<Hello>(ping), Error);
}

TEST_CASE("a number that is no stop is refused", "[launcher][protocol]") {
  CHECK(unpack<StopRanks>(only_frame(encode(StopRanks{StopKind::elsewhere}))).kind ==
        StopKind::elsewhere);
  const std::int64_t number = GENERATE(-1, 3, 258);
  CHECK_THROWS_AS(unpack<StopRanks>({FrameType::stop, WireWriter().number(number).take()}), Error);
}

TEST_CASE("a malformed payload is an error and allocates nothing for its counts",
          "[launcher][protocol]") {
  const std::string payload =
      GENERATE(std::string("short"), WireWriter().text("dstrain").number(kProtocolVersion).take(),
               WireWriter().number(std::int64_t{1} << 62).take(), WireWriter().number(-1).take());
  REQUIRE_THROWS_AS(unpack<Hello>({FrameType::hello, payload}), Error);
  REQUIRE_THROWS_AS(WireReader(payload).texts().size(), Error);
}

TEST_CASE("another protocol version is refused with both numbers", "[launcher][protocol]") {
  const Frame frame{FrameType::hello,
                    WireWriter().text("dstrain").number(kProtocolVersion + 1).text("x").take()};
  REQUIRE_THROWS_WITH(unpack<Hello>(frame), "the other side speaks protocol version " +
                                                std::to_string(kProtocolVersion + 1) +
                                                ", this build speaks " +
                                                std::to_string(kProtocolVersion));
}

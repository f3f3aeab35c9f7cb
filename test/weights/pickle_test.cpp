#include "engine/weights/pickle.h"

#include <fmt/format.h>

#include <random>
#include <string>

#include "engine/base/error.h"
#include "engine/weights/pickle_array.h"
#include "engine/weights/pickle_listing.h"
#include "test/support/catch.h"
#include "test/support/mutate.h"
#include "test/support/torch_file.h"

namespace dstrain {
namespace {

using test::little;
using test::pickled;
using test::pickled_tensor;
using test::program_of;
using Kind = PickleValue::Kind;
using namespace std::string_literals;

Pickle read(const std::string& program, const PickleLimits& limits = {}) {
  return {std::as_bytes(std::span(program)), "p.pkl", limits};
}

std::string pickle_error(const std::string& program, const PickleLimits& limits = {}) {
  try {
    (void)read(program, limits);
  } catch (const Error& error) {
    CHECK(error.kind() == ErrorKind::data);
    return error.what();
  }
  return "no error";
}

TEST_CASE("values of a pickle are as Python has them", "[weights][pickle]") {
  const Pickle pickle = read(program_of(
      "}(" + pickled("n") + "N" + pickled("t") + "\x88" + pickled("i") + "J\xFE\xFF\xFF\xFF" +
      pickled("k") + "\x8a\x01\x80" + pickled("b") + "B\x02\0\0\0\xFF\xFE"s + pickled("f") +
      "G\x3F\xF8\0\0\0\0\0\0"s + pickled("l") + "](K\x01K\x02" + "e" + pickled("e") + "])" + "a" +
      pickled("s") + "\x8f(K\x07\x90" + "u"));
  const PickleValue& root = pickle.root();
  CHECK(root.is(Kind::dict));
  CHECK(root.find("n")->is(Kind::none));
  CHECK(root.find("t")->is(Kind::boolean));
  CHECK(root.find("t")->integer == 1);
  CHECK(root.find("i")->integer == -2);
  CHECK(root.find("k")->integer == -128);
  CHECK(root.find("b")->text == "\xFF\xFE");
  CHECK(root.find("f")->real == 1.5);
  REQUIRE(root.find("l")->items.size() == 2);
  CHECK(root.find("l")->items[1]->integer == 2);
  CHECK(root.find("e")->items.at(0)->is(Kind::tuple));
  CHECK(root.find("s")->is(Kind::set));
  CHECK(root.find("absent") == nullptr);
}

/// An array as numpy pickles it by protocol 2 for Python 2, whose texts are bytes, with this type,
/// shape, order of Fortran and content.
std::string pickled_array(const std::string& module, const std::string& type,
                          const std::string& shape, const std::string& order,
                          const std::string& bytes) {
  return "c" + module + ".multiarray\n_reconstruct\n(cnumpy\nndarray\n(K\0tU\x01"s + "btR" +
         "(K\x01" + shape + "cnumpy\ndtype\n(U\x02" + type + "K\0K\x01tR(K\x03U\x01|NNNJ"s +
         "\xFF\xFF\xFF\xFFJ\xFF\xFF\xFF\xFFK\0tb"s + order + "U" + little(bytes.size(), 1) + bytes +
         "tb";
}

TEST_CASE("an array of bytes is read as numpy pickles it, before and since its version 2",
          "[weights][pickle]") {
  for (const char* module : {"numpy.core", "numpy._core"}) {
    CAPTURE(module);
    const Pickle pickle =
        read(program_of(pickled_array(module, "u1", "K\x02K\x03\x86", "\x89", "abcdef")));
    const auto array = byte_array(pickle.root());
    REQUIRE(array);
    CHECK(array->shape == std::vector<std::int64_t>{2, 3});
    CHECK(array->bytes == "abcdef");
  }
  // Keys that are bytes, as Python 2 wrote texts.
  CHECK(read(program_of("}U\x01" + "aK\x07s"s)).root().find("a")->integer == 7);
}

TEST_CASE("what is no whole array of bytes is none", "[weights][pickle]") {
  const auto none = [](const std::string& value) {
    return !byte_array(read(program_of(value)).root()).has_value();
  };
  const std::string shape = "K\x02K\x03\x86", c = "\x89";
  CHECK(none(pickled_array("numpy.core", "i4", shape, c, "abcdef")));
  CHECK(none(pickled_array("numpy.core", "u1", shape, "\x88", "abcdef")));
  CHECK(none(pickled_array("numpy.core", "u1", shape, c, "abcde")));
  CHECK(none(pickled_array("numpy.core", "u1", "K\x02J\xFF\xFF\xFF\xFF\x86", c, "abcdef")));
  const std::string huge = "\x8a\x08" + little(std::uint64_t{1} << 62U, 8);
  CHECK(none(pickled_array("numpy.core", "u1", huge + huge + "\x86", c, "abcdef")));
  CHECK(none(pickled_array("numpy.core", "u1", "]", c, "abcdef")));
  CHECK(none(pickled_array("os", "u1", shape, c, "abcdef")));
  CHECK(none("cnumpy.core.multiarray\n_reconstruct\n"));
  CHECK(none("cposix\nsystem\n(U\x02idtR"));
  CHECK(none("U\x06" + "abcdef"s));
}

TEST_CASE("the last of equal keys holds, and later items join an earlier dict",
          "[weights][pickle]") {
  const Pickle pickle =
      read(program_of("}q\0("s + pickled("a") + "K\x01" + "u" + pickled("a") + "K\x02" + "s"));
  CHECK(pickle.root().find("a")->integer == 2);
}

TEST_CASE("a tensor is a view of its storage", "[weights][pickle]") {
  const Pickle pickle =
      read(program_of(pickled_tensor("7", {2, 3}, {1, 2}, 4, 10, "BFloat16Storage")));
  REQUIRE(pickle.root().is(Kind::tensor));
  const PickleTensor& tensor = *pickle.root().tensor;
  CHECK(tensor.storage->key == "7");
  CHECK(tensor.dtype == "BF16");
  CHECK(tensor.offset == 4);
  CHECK(tensor.shape == std::vector<std::int64_t>{2, 3});
  CHECK_FALSE(tensor.contiguous());
  const Pickle parameter = read(program_of("ctorch._utils\n_rebuild_parameter\n(" +
                                           pickled_tensor("0", {4}, {1}, 0, 4) + "\x88" + "NtR"));
  CHECK(parameter.root().tensor->contiguous());
}

TEST_CASE("a call of an unknown function is only written down", "[weights][pickle]") {
  const Pickle pickle = read(program_of("cos\nsystem\n(" + pickled("touch /tmp/canary") + "tR"));
  CHECK(pickle.root().is_opaque("os.system"));
  REQUIRE(pickle.root().arguments != nullptr);
  CHECK(pickle.root().arguments->items.at(0)->text == "touch /tmp/canary");
  const Pickle object = read("\x80\x04" + pickled("pkg.mod") + pickled("Thing") + "\x93)\x81}" +
                             pickled("x") + "K\x05sb.");
  CHECK(object.root().is_opaque("pkg.mod.Thing"));
  CHECK(object.root().find("x")->integer == 5);
}

TEST_CASE("what torch never writes is refused with its byte", "[weights][pickle]") {
  CHECK(pickle_error("").find("p.pkl: the pickle ends without STOP at byte 0") == 0);
  CHECK(pickle_error("\x80\x02K")
            .find("p.pkl: the pickle ends 1 bytes before it is complete at byte 2") == 0);
  CHECK(pickle_error("\x80\x07N.").find("p.pkl: pickle protocol 7, 2 to 5 are read at byte 0") ==
        0);
  CHECK(pickle_error("I1\n.").find("p.pkl: opcode 0x49, which protocols 2 to 5 do not write") == 0);
  CHECK(pickle_error(program_of("t")).find("p.pkl: no mark on the stack at byte 2") == 0);
  CHECK(pickle_error(program_of("")).find("p.pkl: an empty stack at byte 2") == 0);
  CHECK(pickle_error(program_of("h\x05")).find("p.pkl: no value 5 in the memo at byte 2") == 0);
  CHECK(pickle_error(program_of("X\x01\0\0\0\xFF"s)).find("p.pkl: a text is not UTF-8 at byte 2") ==
        0);
  CHECK(pickle_error(program_of("K\x01K\x02" + "a"s))
            .find("p.pkl: items for a whole number at byte") == 0);
  CHECK(pickle_error(program_of("K\x01)R")).find("p.pkl: a call of a whole number at byte") == 0);
  CHECK(pickle_error(program_of("cos\nsystem\nK\x01R"))
            .find("p.pkl: a call with a whole number at byte") == 0);
  CHECK(pickle_error(program_of("K\x01Q"))
            .find("p.pkl: a persistent id that is no storage at byte") == 0);
  CHECK(pickle_error(program_of("}(K\x01u")).find("p.pkl: a key without a value at byte") == 0);
  for (const auto& [shape, strides, offset] :
       {std::tuple<std::vector<std::int64_t>, std::vector<std::int64_t>, std::int64_t>{{5}, {1}, 0},
        {{4}, {1}, 1},
        {{2}, {4}, 0},
        {{1LL << 40, 1LL << 40}, {1, 1}, 0},
        {{2, 2}, {1LL << 62, 1LL << 62}, 0},
        {{1LL << 62}, {0}, 0}}) {
    CHECK(pickle_error(program_of(pickled_tensor("0", shape, strides, offset, 4)))
              .find("p.pkl: a tensor that reaches beyond the 4 elements of its storage") == 0);
  }
  CHECK(pickle_error(program_of(pickled_tensor("0", {2}, {-1}, 0, 4)))
            .find("p.pkl: a tensor with a stride that is not from 0") == 0);
  CHECK(pickle_error(program_of(pickled_tensor("0", {2}, {}, 0, 4)))
            .find("p.pkl: a tensor of 1 sizes and 0 strides") == 0);
  CHECK(pickle_error(program_of(pickled_tensor("0", {2}, {1}, 0, 4, "EvilStorage")))
            .find("p.pkl: a storage of torch.EvilStorage") == 0);
}

TEST_CASE("bombs end at their limits", "[weights][pickle]") {
  // Lists inside each other.
  std::string deep;
  for (int i = 0; i < 1500; ++i) deep += "]";
  for (int i = 0; i < 1499; ++i) deep += "a";
  CHECK(pickle_error(program_of(deep)).find("p.pkl: values nested more than 1000 deep") == 0);
  // A billion laughs: each list holds the one before ten times, which costs nothing here.
  std::string laughs = "]q\0"s;
  for (int level = 1; level < 100; ++level) {
    laughs += "](";
    for (int i = 0; i < 10; ++i) laughs += "h" + little(static_cast<std::uint64_t>(level - 1), 1);
    laughs += "eq" + little(static_cast<std::uint64_t>(level), 1);
  }
  CHECK(pickle_error(program_of(laughs)) == "no error");
  CHECK(pickle_error(program_of(std::string(2000, ']')), {.values = 1000})
            .find("p.pkl: more than 1000 values") == 0);
  CHECK(pickle_error(program_of("N" + std::string(2000, '2')), {.stack = 1000})
            .find("p.pkl: a stack of more than 1000") == 0);
  CHECK(pickle_error(program_of(std::string(2000, '(')), {.stack = 1000})
            .find("p.pkl: more than 1000 marks") == 0);
  CHECK(pickle_error(program_of("X\xFF\xFF\xFF\x7F"))
            .find("p.pkl: a text of 2147483647 bytes, more than 67108864") == 0);
  CHECK(pickle_error(program_of("\x8D" + little(~std::uint64_t{0}, 8))).find("p.pkl: a text of") ==
        0);
  // A constant is one value wherever it stands; others need bytes of the file.
  std::string many = "](";
  for (int i = 0; i < 1000; ++i) many += "NK\x07\x88\x89"s;
  CHECK(pickle_error(program_of(many + "e"), {.values = 5}) == "no error");
  const Pickle constants = read(program_of(many + "e"));
  CHECK(constants.root().items.at(0) == constants.root().items.at(4));
  CHECK(pickle_error(program_of(std::string(std::size_t{2} << 20, ']')))
            .find("values in 2097155 bytes") != std::string::npos);
  // A long name that is called again and again.
  std::string names = "c" + std::string(1 << 20, 'm') + "\nf\nq\0"s;
  for (int i = 0; i < 2000; ++i) names += "h\0)R"s;
  CHECK(pickle_error(program_of(names)).find("p.pkl: too many copies of its values") == 0);
}

TEST_CASE("a listing keeps its limits", "[weights][pickle]") {
  std::string objects = "](";
  for (int i = 0; i < 4; ++i)
    objects += pickled("pkg.mod") + pickled("Thing") + "\x93)\x81}" + pickled("x") + "K\x05sb";
  const Pickle pickle = read("\x80\x04" + objects + "e.");
  const auto lines = listing(pickle.root(), {.values = 3, .depth = 1});
  REQUIRE(lines.size() == 4);  // three and how many are left out
  CHECK(lines[0].what == "pkg.mod.Thing");
  CHECK(lines[0].value == " with a state nested deeper than 1");
  CHECK(lines[3].what == "1 more");
}

TEST_CASE("a listing names what several hold after the first of them", "[weights][pickle]") {
  // Each list holds the one before twice.
  std::string twice = "](K\x01N]eq\0"s;
  for (int level = 1; level < 30; ++level) {
    twice += "](h" + little(static_cast<std::uint64_t>(level - 1), 1) + "h" +
             little(static_cast<std::uint64_t>(level - 1), 1) + "eq" +
             little(static_cast<std::uint64_t>(level), 1);
  }
  const Pickle pickle = read(program_of(twice));
  const auto lines = listing(pickle.root());
  CHECK(lines.size() == 3 + 29);
  CHECK(lines.back().path == "[1]");
  CHECK(lines.back().value == "the same as [0]");
  CHECK(listing(pickle.root(), {.bytes = 100}).size() < 10);
}

TEST_CASE("a list that holds itself is read", "[weights][pickle]") {
  const Pickle pickle = read(program_of("]q\0h\0a"s));
  CHECK(pickle.root().items.at(0) == &pickle.root());
}

TEST_CASE("changed pickles are read or refused", "[weights][pickle]") {
  std::mt19937 random(5);
  const std::string good =
      program_of("}(" + pickled("a") + pickled_tensor("0", {2, 2}, {2, 1}, 0, 4) + pickled("b") +
                 "](K\x01NG\x3F\xF8\0\0\0\0\0\0e"s + pickled("c") + "cargparse\nNamespace\n)\x81}" +
                 pickled("x") + "K\x05sbu");
  CHECK(pickle_error(good) == "no error");
  for (int i = 0; i < 20'000; ++i) (void)pickle_error(test::mutated(good, random));
}

}  // namespace
}  // namespace dstrain

# cmake -DINPUT=file -DOUTPUT=file.cpp -P embed.cmake: the bytes of INPUT as dstrain::kDigitsFile.
file(READ ${INPUT} bytes HEX)
string(REGEX REPLACE "(................................)" "\\1\n" bytes "${bytes}")
string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${bytes}")
file(WRITE ${OUTPUT} "#include \"engine/data/images/digits/embedded.h\"

namespace dstrain {
namespace {
constexpr unsigned char kBytes[] = {
${bytes}};
}  // namespace
const std::span<const unsigned char> kDigitsFile(kBytes);
}  // namespace dstrain
")

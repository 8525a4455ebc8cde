// UTF-8: every character, those of it that are not, and long runs.
#include "ground/utf8.hpp"

#include <cstdint>
#include <string>
#include <vector>

#include "tests/support/check.hpp"

namespace {

std::string encode(std::uint32_t code) {
  const auto tail = [code](int shift) { return static_cast<char>(0x80 | (code >> shift & 0x3f)); };
  if (code < 0x80) return {static_cast<char>(code)};
  if (code < 0x800) return {static_cast<char>(0xc0 | code >> 6), tail(0)};
  if (code < 0x10000) return {static_cast<char>(0xe0 | code >> 12), tail(6), tail(0)};
  return {static_cast<char>(0xf0 | code >> 18), tail(12), tail(6), tail(0)};
}

void test_characters() {
  for (std::uint32_t code = 0; code < 0x110000; code += code < 0x3000 ? 1 : 7) {
    const std::string bytes = encode(code);
    const auto found = penstock::measure_utf8(bytes);
    const bool surrogate = code >= 0xd800 && code < 0xe000;
    CHECK(found.has_value() == !surrogate);
    if (surrogate) continue;
    const unsigned width = code < 0x100 ? 1 : code < 0x10000 ? 2 : 4;
    CHECK(found->characters == 1 && found->unit_bytes() == width);
    std::uint32_t unit = 0;  // its first bytes, on little-endian machines
    penstock::widen_utf8(*found, &unit);
    CHECK(unit == code);
  }
}

void test_broken() {
  for (const char* bytes : {"\x80", "\xc0\x80", "\xc1\xbf", "\xc3", "\xe0\x80\x80", "\xe0\x9f\xbf",
                            "\xe4\xb8", "\xed\xa0\x80", "\xf0\x80\x80\x80", "\xf0\x8f\xbf\xbf",
                            "\xf4\x90\x80\x80", "\xf5\x80\x80\x80", "\xff", "\xc3\xc3\xa9"})
    for (const std::size_t before : {0, 15, 16, 63, 64, 100})
      CHECK(!penstock::measure_utf8(std::string(before, 'a') + bytes));
}

void test_runs() {
  for (std::size_t size = 0; size < 200; ++size) {
    const std::string text = std::string(size, 'x') + "\xe2\x80\x9c" + std::string(size, 'y');
    const auto found = penstock::measure_utf8(text);
    CHECK(found && found->characters == 2 * size + 1 && found->unit_bytes() == 2);
    std::vector<std::uint16_t> units(found->characters);
    penstock::widen_utf8(*found, units.data());
    for (std::size_t i = 0; i < size; ++i) CHECK(units[i] == 'x' && units[size + 1 + i] == 'y');
    CHECK(units[size] == 0x201c);
  }
}

}  // namespace

int main() {
  test_characters();
  test_broken();
  test_runs();
}

// Damage of a file: the byte at which it lies, and a message. Errors of data are values.
#pragma once

#include <cstdint>
#include <string>

namespace penstock {

struct ParseError {
  std::uint64_t offset = 0;
  std::string message;
};

}  // namespace penstock

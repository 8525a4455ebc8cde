// What is wrong with a file, and at which byte. Errors of data are values.
#pragma once

#include <cstdint>
#include <string>

namespace penstock {

struct Flaw {
  std::uint64_t offset = 0;
  std::string message;
};

}  // namespace penstock

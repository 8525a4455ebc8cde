// Instruction sets are those that the kernel lists: none is missed, none is made up.
#include <fstream>
#include <string>

#include "ground/processor.hpp"
#include "tests/support/check.hpp"

namespace {

bool is_listed(const std::string& flags, const std::string& name) {
  return flags.find(" " + name + " ") != std::string::npos;
}

}  // namespace

int main() {
  std::ifstream file("/proc/cpuinfo");
  std::string flags;
  while (std::getline(file, flags) && flags.rfind("flags", 0) != 0) {
  }
  flags += " ";
  const penstock::Processor& found = penstock::processor();
  CHECK(found.sse42 == is_listed(flags, "sse4_2"));
  CHECK(found.popcnt == is_listed(flags, "popcnt"));
  CHECK(found.f16c == is_listed(flags, "f16c"));
  CHECK(found.bmi == (is_listed(flags, "bmi1") && is_listed(flags, "bmi2")));
  CHECK(found.avx2 == is_listed(flags, "avx2"));
  CHECK(found.avx512 == (is_listed(flags, "avx512f") && is_listed(flags, "avx512dq") &&
                         is_listed(flags, "avx512vl") && is_listed(flags, "avx512bw")));
  return 0;
}

// The smallest writer of tar archives.
#pragma once

#include <cstdio>
#include <cstring>
#include <string>
#include <string_view>

namespace penstock {

inline std::string tar_member(std::string_view name, std::string_view data, char type = '0') {
  std::string block(512, '\0');
  block.replace(0, name.size(), name);
  char number[16];
  std::snprintf(number, sizeof number, "%011o", static_cast<unsigned>(data.size()));
  block.replace(124, 11, number, 11);
  block[156] = type;
  block.replace(257, 5, "ustar");
  block.replace(263, 2, "00");
  block.replace(148, 8, "        ");
  unsigned sum = 0;
  for (const char c : block) sum += static_cast<unsigned char>(c);
  std::snprintf(number, sizeof number, "%06o", sum);
  block.replace(148, 7, number, 7);
  block += data;
  return block + std::string((512 - data.size() % 512) % 512, '\0');
}

}  // namespace penstock

// What systems leave in folders: files and folders that are no data, wherever they are listed. The
// list is that of src/penstock/engine/leftovers.py.
#pragma once

#include <algorithm>
#include <string_view>

namespace penstock {

inline constexpr std::string_view leftovers[] = {
    "__macosx",      "icon\r",                                               // macOS
    "thumbs.db",     "ehthumbs.db", "desktop.ini",                           // Windows
    "$recycle.bin",  "recycler",    "system volume information",
    "@eadir",        "#recycle",    "@recycle",    "#snapshot",              // NAS
    "@recently-snapshot",           "network trash folder", "temporary items",
    "lost+found",    "__pycache__", "_success",                              // Linux, Python, Spark
};

// True for the name of a hidden file or folder, among them "." and "..", and of what a system left.
inline bool is_left_over(std::string_view name) {
  if (name.starts_with('.')) return true;
  const auto same = [](char a, char b) {
    return (a >= 'A' && a <= 'Z' ? static_cast<char>(a - 'A' + 'a') : a) == b;
  };
  return std::any_of(std::begin(leftovers), std::end(leftovers), [&](std::string_view known) {
    return known.size() == name.size() && std::equal(name.begin(), name.end(), known.begin(), same);
  });
}

}  // namespace penstock

#include "engine/storage.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <string_view>
#include <utility>

#include "engine/checked_files.hpp"

namespace penstock {
namespace {

constexpr std::array<std::pair<unsigned long, const char*>, 14> names = {{
    {0xEF53, "ext4"},       {0x58465342, "xfs"},   {0x9123683E, "btrfs"}, {0x01021994, "tmpfs"},
    {0x858458F6, "ramfs"},  {0x65735546, "fuse"},  {0x6969, "nfs"},       {0x0BD00BD0, "lustre"},
    {0x47504653, "gpfs"},   {0xFF534D42, "cifs"},  {0x794C7630, "overlay"}, {0x73717368, "squashfs"},
    {0x00C36400, "ceph"},   {0x19830326, "beegfs"},
}};

constexpr std::size_t page = 4096;
constexpr std::size_t probe_pages = 64;
constexpr std::size_t probes_max = 64;

double probe(int fd, std::size_t size) {
  void* map = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, fd, 0);
  if (map == MAP_FAILED) return -1;
  const std::size_t pages = (size + page - 1) / page;
  const std::size_t probes = std::min(probes_max, (pages + probe_pages - 1) / probe_pages);
  std::size_t asked = 0;
  std::size_t resident = 0;
  std::array<unsigned char, probe_pages> answer{};
  for (std::size_t i = 0; i < probes; ++i) {
    const std::size_t first = pages / probes * i;
    const std::size_t count = std::min(probe_pages, pages - first);
    if (::mincore(static_cast<std::byte*>(map) + first * page, count * page, answer.data()) != 0) break;
    asked += count;
    for (std::size_t j = 0; j < count; ++j) resident += answer[j] & 1u;
  }
  ::munmap(map, size);
  return asked == 0 ? -1 : static_cast<double>(resident) / static_cast<double>(asked);
}

}  // namespace

std::string get_file_system(const std::string& path) {
  struct statfs info {};
  if (::statfs(path.c_str(), &info) != 0) return "unknown";
  const auto type = static_cast<unsigned long>(info.f_type);
  for (const auto& [number, name] : names) {
    if (number == type) return name;
  }
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), "0x%lx", type);
  return text.data();
}

bool is_remote(int fd) {
  constexpr std::array<std::string_view, 7> remote = {"fuse", "nfs",  "lustre", "gpfs",
                                                      "cifs", "ceph", "beegfs"};
  struct statfs info {};
  if (::fstatfs(fd, &info) != 0) return false;
  const auto type = static_cast<unsigned long>(info.f_type);
  return std::any_of(names.begin(), names.end(), [&](const auto& known) {
    return known.first == type && std::find(remote.begin(), remote.end(), known.second) != remote.end();
  });
}

int probe_direct_io(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_DIRECT);
  if (fd < 0) return errno == EINVAL ? EINVAL : 0;
  const bool usable = direct_alignment(fd) != 0;
  ::close(fd);
  return usable ? 0 : EINVAL;
}

double measure_residency(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0) return -1;
  struct stat info {};
  double fraction = -1;
  // To others than the owner and writers the kernel calls every page resident.
  if (::fstat(fd, &info) == 0 && S_ISREG(info.st_mode) &&
      (info.st_uid == ::geteuid() || ::access(path.c_str(), W_OK) == 0)) {
    fraction = info.st_size == 0 ? 1.0 : probe(fd, static_cast<std::size_t>(info.st_size));
  }
  ::close(fd);
  return fraction;
}

}  // namespace penstock

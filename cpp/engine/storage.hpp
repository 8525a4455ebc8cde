// Facts about where a file lies, for the choice of a backend.
#pragma once

#include <string>

namespace penstock {

// The file system's name ("ext4", "tmpfs", "fuse", "nfs", ...), or its number in hexadecimal.
std::string file_system(const std::string& path);

// Whether a file lies on storage that other machines use too, as far as is known.
bool is_remote(int fd);

// 0 where the file can be read by O_DIRECT, or cannot be opened at all; else errno.
int direct_refusal(const std::string& path);

// The part of a file that is in the page cache, from up to 64 probes spread over it: 0..1, or -1
// where the kernel does not tell (files of other users).
double resident_fraction(const std::string& path);

}  // namespace penstock

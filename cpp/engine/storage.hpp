// Facts about the storage of a file, for the choice of a backend.
#pragma once

#include <string>

namespace penstock {

// The file system's name ("ext4", "tmpfs", "fuse", "nfs", ...), or its number in hexadecimal.
std::string get_file_system(const std::string& path);

// True if a file is known to lie on storage that other machines use too.
bool is_remote(int fd);

// 0 if the file can be read by O_DIRECT, or cannot be opened at all; else errno.
int probe_direct_io(const std::string& path);

// The part of a file that is in the page cache, from up to 64 probes spread over it: 0..1, or -1
// if the kernel does not tell (files of other users).
double measure_residency(const std::string& path);

}  // namespace penstock

// Scans real folders: order, links, loops, failures, cancelling, many threads.
#include "index/scan.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/support/check.hpp"

namespace fs = std::filesystem;
using penstock::Listing;
using penstock::Names;

namespace {

class Folder {
 public:
  Folder() {
    std::string pattern = (fs::temp_directory_path() / "penstock-scan-XXXXXX").string();
    CHECK(::mkdtemp(pattern.data()) != nullptr);
    path_ = pattern;
  }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  ~Folder() { fs::remove_all(path_); }

  std::string path() const { return path_.string(); }
  void file(const std::string& name, std::size_t bytes = 1) const {
    fs::create_directories((path_ / name).parent_path());
    std::ofstream(path_ / name) << std::string(bytes, 'x');
  }
  void link(const std::string& target, const std::string& name) const {
    fs::create_directories((path_ / name).parent_path());
    CHECK(::symlink(target.c_str(), (path_ / name).c_str()) == 0);
  }

 private:
  fs::path path_;
};

std::vector<std::string> list(const Names& names) {
  std::vector<std::string> found;
  std::int64_t start = 0;
  for (const std::int64_t end : names.ends) {
    found.push_back(names.text.substr(static_cast<std::size_t>(start),
                                      static_cast<std::size_t>(end - start)));
    start = end;
  }
  return found;
}

Listing scan_folder(const Folder& folder, unsigned threads, std::vector<std::string> extensions = {}) {
  return penstock::scan_folder(folder.path(), {std::move(extensions), threads}, nullptr);
}

using Strings = std::vector<std::string>;

void order_is_that_of_whole_paths() {
  const Folder folder;
  const Strings names = {"a-b/x", "a.txt", "a/x", "a/y/z", "a/yy", "a0/x", "b"};
  for (const auto& name : names) folder.file(name, name.size());
  for (unsigned threads : {1u, 2u, 8u}) {
    const Listing found = scan_folder(folder, threads);
    CHECK(list(found.files) == names);
    CHECK(found.failures.empty());
    for (std::size_t i = 0; i < names.size(); ++i)
      CHECK(found.size[i] == static_cast<std::int64_t>(names[i].size()));
    CHECK((list(found.folders) == Strings{"", "a-b", "a", "a/y", "a0"}));
    CHECK((found.folder == std::vector<std::int32_t>{1, 0, 2, 3, 2, 4, 0}));
  }
}

void hidden_files_sidecars_and_other_extensions_are_left_out() {
  const Folder folder;
  for (const auto* name : {".hidden", ".d/x.jpg", "x.penstock", "x.JPG", "y.jpeg", "z.txt",
                           "__MACOSX/a.jpg", "d/@eaDir/b.jpg", "thumbs.DB", "lost+found/c.jpg"})
    folder.file(name);
  CHECK((list(scan_folder(folder, 2, {".jpg", ".jpeg"}).files) == Strings{"x.JPG", "y.jpeg"}));
}

void links_are_followed_and_loops_end() {
  const Folder folder, elsewhere;
  elsewhere.file("far", 3);
  folder.file("d/near");
  folder.link(elsewhere.path(), "link");
  folder.link(elsewhere.path() + "/far", "file");
  folder.link("..", "d/up");
  folder.link("self", "self");
  const Listing found = scan_folder(folder, 4);
  CHECK((list(found.files) == Strings{"d/near", "file", "link/far"}));
  CHECK(found.size[1] == 3);
  CHECK(found.failures.size() == 1);
  CHECK(found.failures[0].path == "self" && found.failures[0].error == ELOOP);
}

void mazes_of_links_end() {
  const Folder folder;
  for (const auto* from : {"a", "b", "c"})
    for (const auto* to : {"a", "b", "c"}) folder.link("../" + std::string(to), std::string(from) + "/" + to);
  CHECK(scan_folder(folder, 4).files.ends.empty());
}

void failures_are_values() {
  const Folder folder;
  folder.link("nowhere", "b");
  folder.link("nowhere", "a");
  const Listing found = scan_folder(folder, 2);
  CHECK(found.failures.size() == 2);
  CHECK(found.failures[0].path == "a" && found.failures[0].error == ENOENT);
  const Listing missing = penstock::scan_folder(folder.path() + "/none", {{}, 2}, nullptr);
  CHECK(missing.failures.size() == 1 && missing.failures[0].error == ENOENT);
}

void many_files_are_the_same_for_any_number_of_threads() {
  const Folder folder;
  for (int i = 0; i < 3000; ++i) folder.file("flat/" + std::to_string(i * 7919 % 3001));
  for (int i = 0; i < 300; ++i) folder.file("deep/" + std::to_string(i % 30) + "/" + std::to_string(i));
  const Strings one = list(scan_folder(folder, 1).files);
  CHECK(one.size() == 3300);
  CHECK(std::is_sorted(one.begin(), one.end()));
  CHECK(list(scan_folder(folder, 8).files) == one);
}

void stat_answers_for_each_name() {
  const Folder folder;
  Names names;
  for (int i = 0; i < 2000; ++i) {
    const std::string name = std::to_string(i);
    if (i % 2 == 0) folder.file(name, static_cast<std::size_t>(i % 50));
    names.text += name;
    names.ends.push_back(static_cast<std::int64_t>(names.text.size()));
  }
  fs::create_directories(folder.path() + "/1");
  const penstock::Stats found = penstock::stat_files(folder.path(), names.text, names.ends, 4);
  CHECK(found.error[1] == EISDIR);
  for (std::size_t i = 2; i < 2000; ++i) {
    CHECK(found.error[i] == (i % 2 == 0 ? 0 : ENOENT));
    if (i % 2 == 0) CHECK(found.size[i] == static_cast<std::int64_t>(i % 50));
  }
}

void cancelling_ends_the_scan() {
  const Folder folder;
  for (int i = 0; i < 64; ++i) folder.file(std::to_string(i) + "/x");
  const Listing found = penstock::scan_folder(folder.path(), {{}, 2}, [](std::uint64_t) { return false; });
  CHECK(found.cancelled && found.files.ends.empty());
}

}  // namespace

int main() {
  order_is_that_of_whole_paths();
  hidden_files_sidecars_and_other_extensions_are_left_out();
  links_are_followed_and_loops_end();
  mazes_of_links_end();
  failures_are_values();
  many_files_are_the_same_for_any_number_of_threads();
  stat_answers_for_each_name();
  cancelling_ends_the_scan();
}

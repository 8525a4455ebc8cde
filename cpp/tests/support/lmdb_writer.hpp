// LMDB environments made page by page: any data version and page size, one commit, packed pages.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace penstock {

class LmdbWriter {
 public:
  using Pairs = std::vector<std::pair<std::string, std::string>>;

  explicit LmdbWriter(unsigned version = 1, std::size_t page_bytes = 512)
      : version_(version), page_bytes_(page_bytes), header_(version == 1 ? 16 : 24) {}

  // The main database, of pairs in ascending order of keys.
  std::string write(const Pairs& pairs, unsigned flags = 0) {
    const std::string record = database(pairs, flags);
    return finish(record);
  }

  // A main database of named ones.
  std::string write_named(const std::vector<std::pair<std::string, Pairs>>& databases) {
    Pairs records;
    for (const auto& [name, pairs] : databases)
      records.emplace_back(version_ == 3 ? name + '\0' : name, database(pairs, 0));
    return finish(database(records, 0, 2));
  }

  std::size_t header() const { return header_; }
  static constexpr std::uint64_t txnid = 7;

 private:
  template <typename T>
  static void put(std::string& to, std::size_t at, T value) {
    std::memcpy(to.data() + at, &value, sizeof value);
  }
  template <typename T>
  static std::string packed(T value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
  }

  std::size_t base() const { return version_ == 1 ? 0 : header_; }

  std::string page(std::uint64_t number, unsigned type) const {
    std::string p(page_bytes_, '\0');
    put(p, 0, number);
    if (version_ > 1) put(p, 8, txnid);
    put(p, header_ - 6, static_cast<std::uint16_t>(type));
    return p;
  }

  // Appends a page of nodes, and says its number.
  std::uint64_t add(unsigned type, const std::vector<std::string>& nodes) {
    const std::uint64_t number = pages_.size() + 2;
    std::string p = page(number, type);
    std::size_t upper = page_bytes_;
    for (std::size_t i = 0; i < nodes.size(); ++i) {
      upper -= (nodes[i].size() + 1) & ~std::size_t{1};
      p.replace(upper, nodes[i].size(), nodes[i]);
      put(p, header_ + 2 * i, static_cast<std::uint16_t>(upper - base()));
    }
    put(p, header_ - 4, static_cast<std::uint16_t>(header_ - base() + 2 * nodes.size()));
    put(p, header_ - 2, static_cast<std::uint16_t>(upper - base()));
    pages_.push_back(p);
    return number;
  }

  std::string leaf_node(const std::string& key, const std::string& value, unsigned flags) {
    std::string padded = key;
    if (version_ == 3 && key.size() % 2 != 0) padded += '\0';
    const std::size_t most = (((page_bytes_ - header_) / 2) & ~std::size_t{1}) - 2;
    std::string payload = value;
    if (8 + padded.size() + value.size() > most) {
      flags |= 1;
      const std::uint64_t first = pages_.size() + 2;
      const std::size_t count = (header_ - 1 + value.size()) / page_bytes_ + 1;
      std::string run = page(first, 4);
      run.resize(count * page_bytes_);
      put(run, header_ - 4, static_cast<std::uint32_t>(count));
      run.replace(header_, value.size(), value);
      for (std::size_t i = 0; i < count; ++i)
        pages_.push_back(run.substr(i * page_bytes_, page_bytes_));
      overflows_ += count;
      payload = packed(first);
      if (version_ > 1) payload += packed(txnid) + packed(std::uint64_t{count});
    }
    const auto length = static_cast<std::uint32_t>(value.size());
    return packed(length) + packed(static_cast<std::uint16_t>(flags)) +
           packed(static_cast<std::uint16_t>(key.size())) + padded + payload;
  }

  // The pages of a database, and its record.
  std::string database(const Pairs& pairs, unsigned flags, unsigned node_flags = 0) {
    std::uint64_t branches = 0, leaves = 0, root = ~std::uint64_t{0};
    std::uint16_t depth = 0;
    overflows_ = 0;
    std::vector<std::pair<std::string, std::uint64_t>> level;  // first keys, pages
    std::vector<std::string> nodes;
    std::string first;
    std::size_t used = 0;
    const auto flush = [&](unsigned type, auto& to, std::uint64_t& counted) {
      if (nodes.empty()) return;
      to.emplace_back(first, add(type, nodes));
      ++counted;
      nodes.clear();
      used = 0;
    };
    const auto push = [&](unsigned type, const std::string& key, std::string node, auto& to,
                          std::uint64_t& counted) {
      const std::size_t bytes = ((node.size() + 1) & ~std::size_t{1}) + 2;
      if (header_ + used + bytes > page_bytes_) flush(type, to, counted);
      if (nodes.empty()) first = key;
      used += bytes;
      nodes.push_back(std::move(node));
    };
    for (const auto& [key, value] : pairs)
      push(2, key, leaf_node(key, value, node_flags), level, leaves);
    flush(2, level, leaves);
    if (!level.empty()) depth = 1;
    while (level.size() > 1) {
      std::vector<std::pair<std::string, std::uint64_t>> above;
      for (const auto& [key, child] : level) {
        const std::string shown = nodes.empty() ? "" : key;
        std::string node = packed(static_cast<std::uint32_t>(child)) +
                           packed(static_cast<std::uint16_t>(child >> 32)) +
                           packed(static_cast<std::uint16_t>(shown.size())) + shown;
        push(1, key, std::move(node), above, branches);
      }
      flush(1, above, branches);
      level = std::move(above);
      ++depth;
    }
    if (!level.empty()) root = level[0].second;
    return packed(std::uint32_t{0}) + packed(static_cast<std::uint16_t>(flags)) + packed(depth) +
           packed(branches) + packed(leaves) + packed(overflows_) +
           packed(std::uint64_t{pairs.size()}) + packed(root);
  }

  std::string finish(const std::string& record) {
    std::string file;
    const std::uint64_t last = pages_.size() + 1;
    for (std::uint64_t which = 0; which < 2; ++which) {
      std::string p = page(which, 8);
      std::string free = record;
      put(free, 0, static_cast<std::uint32_t>(page_bytes_));
      put(free, 4, std::uint16_t{8});
      for (std::size_t at = 6; at < 40; ++at) free[at] = '\0';
      put(free, 40, ~std::uint64_t{0});
      const std::string meta = packed(std::uint32_t{0xBEEFC0DE}) + packed(std::uint32_t{version_}) +
                               packed(std::uint64_t{0}) + packed(std::uint64_t{1} << 20) + free +
                               record + packed(last) + packed(which == 1 ? txnid : txnid - 1);
      p.replace(header_, meta.size(), meta);
      file += p;
    }
    for (const std::string& p : pages_) file += p;
    return file;
  }

  unsigned version_;
  std::size_t page_bytes_, header_;
  std::uint64_t overflows_ = 0;
  std::vector<std::string> pages_;  // from number 2 on
};

}  // namespace penstock

// A folder that keeps the codes which the code store's memory has no room for, across restarts.
//
// One file per block and code space (code_file.h), bounded in bytes, least recently used first. A
// thread of its own writes; what comes faster than the disk takes it is dropped, and so is what
// cannot be written: codes are made again when they are missed. A file that is not as it was
// written is removed and never served. Files of other names are left alone.
//
// Thread-safe. One process at a time per folder.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <string>
#include <thread>
#include <unordered_map>

#include "absl/hash/hash.h"
#include "absl/status/statusor.h"
#include "common/base/descriptor.h"
#include "common/base/mutex.h"
#include "common/metrics/metrics.h"
#include "common/prefix_hash/block_hash.h"
#include "common/scd/code_cut.h"
#include "prefill_node/block_codes.h"
#include "prefill_node/code_file.h"

namespace baton {

struct CodeSpillOptions {
  std::string folder;                   // made when it is missing
  std::int64_t capacity_bytes = 0;      // of the files together, also while one is written
  std::int64_t queue_bytes = 64 << 20;  // in memory, on the way to the disk
};

class CodeSpill {
 public:
  // Takes up the files that are there. Errors name the folder: UNAVAILABLE when it cannot be used,
  // FAILED_PRECONDITION when another process uses it.
  static absl::StatusOr<std::unique_ptr<CodeSpill>> Open(CodeSpillOptions options,
                                                         MetricRegistry& metrics);
  // Writes what waits.
  ~CodeSpill();
  CodeSpill(const CodeSpill&) = delete;
  CodeSpill& operator=(const CodeSpill&) = delete;

  // Never waits for the disk. The first of two codes of a block stays.
  void Put(const BlockHash& block, const std::string& space,
           std::shared_ptr<const BlockCodes> codes) EXCLUDES(mu_);
  // Reads the file on this thread. `whole` is the space's. Null: there is none.
  std::shared_ptr<const BlockCodes> Find(const BlockHash& block, const std::string& space,
                                         const CodeCut& whole) EXCLUDES(mu_);

  std::int64_t file_bytes() const EXCLUDES(mu_);
  std::int64_t queued_bytes() const EXCLUDES(mu_);

 private:
  struct HashKey {
    std::size_t operator()(const CodeFileKey& key) const { return absl::HashOf(key); }
  };
  struct File {
    CodeFileKey key;
    std::int64_t bytes = 0;
    std::uint64_t number = 0;  // of those that had the name one after the other
  };
  struct Write {
    CodeFileKey key;
    BlockHash block;
    std::string space;
    std::shared_ptr<const BlockCodes> codes;
    std::int64_t bytes = 0;  // of the file
  };

  CodeSpill(CodeSpillOptions options, int lock, MetricRegistry& metrics);

  std::string PathOf(const CodeFileKey& key) const;
  absl::Status TakeUpFiles() EXCLUDES(mu_);
  void AddFile(File file) REQUIRES(mu_);
  void RunWriter() EXCLUDES(mu_);
  absl::Status WriteFile(const Write& write) EXCLUDES(mu_);
  // Counts the bytes of a file that is about to be written, when the oldest ones have made room.
  absl::Status Reserve(std::int64_t bytes) EXCLUDES(mu_);
  absl::Status RemoveOldest() EXCLUDES(mu_);
  // False: it is no longer there.
  bool Drop(const File& file) EXCLUDES(mu_);

  const CodeSpillOptions options_;
  const Descriptor lock_;  // of the folder, as long as it is used
  Counter hits_;
  Counter written_;
  Counter evictions_;
  CounterFamily dropped_;
  Counter bad_files_;

  mutable Mutex mu_;
  CondVar changed_;
  std::list<File> files_ GUARDED_BY(mu_);  // the latest used first
  std::unordered_map<CodeFileKey, std::list<File>::iterator, HashKey> index_ GUARDED_BY(mu_);
  std::int64_t file_bytes_ GUARDED_BY(mu_) = 0;  // with the one that is being written
  std::uint64_t files_added_ GUARDED_BY(mu_) = 0;
  std::deque<Write> queue_ GUARDED_BY(mu_);
  // What is in queue_, and what is being written.
  std::unordered_map<CodeFileKey, std::shared_ptr<const BlockCodes>, HashKey> queued_
      GUARDED_BY(mu_);
  std::int64_t queued_bytes_ GUARDED_BY(mu_) = 0;
  bool stop_ GUARDED_BY(mu_) = false;
  std::thread writer_;
  GaugeCallback file_gauge_;
  GaugeCallback queue_gauge_;
};

}  // namespace baton

// Turns at coding a prefix: what one transfer computes, another that asks for it meanwhile waits
// for.
//
//   auto turn = turns.Take(key, again);   // null: somebody has it, and `again` is called
//   afterwards
//   ... code the blocks into the store ...
//   turn.reset();                            // those that wait look into the store again
//
// Thread-safe. A turn may outlive its table.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/mutex.h"
#include "common/prefix_hash/block_hash.h"

namespace baton {

class CodingTurns {
  struct Table;

 public:
  // A block, and what is made of it (CodeJob::turn).
  using Key = std::pair<BlockHash, std::string>;

  // For the blocks that nobody else had when it was taken.
  class Turn {
   public:
    Turn(std::shared_ptr<Table> table, std::vector<Key> keys);
    // Calls whoever waits, on this thread.
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    const std::shared_ptr<Table> table_;
    const std::vector<Key> keys_;
  };

  CodingTurns();

  // For the blocks that the store lacks, in order, at least one. Null: another has the turn for the
  // first of them; `again` is called when that ends, on any thread and without a lock.
  std::unique_ptr<Turn> Take(const std::vector<Key>& blocks, std::function<void()> again);
  std::size_t blocks_taken() const;
  // How many turns have ended. While it stays the same, nobody has coded what a turn was for.
  std::uint64_t ended() const;

 private:
  struct Table {
    Mutex mu;
    std::map<Key, std::vector<std::function<void()>>> waiting GUARDED_BY(mu);  // by block taken
    std::uint64_t ended GUARDED_BY(mu) = 0;
  };
  const std::shared_ptr<Table> table_;
};

}  // namespace baton

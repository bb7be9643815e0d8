// Turns at coding a prefix: what one transfer computes, another that asks for it meanwhile waits
// for.
//
//   auto turn = turns.Take(key, again);   // null: somebody has it, and `again` is called
//   afterwards
//   ... code the blocks into the store ...
//   turn.reset();                         // those that wait look into the store again
//
// Thread-safe. A turn may outlive its table.
#pragma once

#include <cstddef>
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
  // The first block that the store lacks, and what is made of it (CodeJob::turn).
  using Key = std::pair<BlockHash, std::string>;

  class Turn {
   public:
    Turn(std::shared_ptr<Table> table, Key key);
    // Calls whoever waits, on this thread.
    ~Turn();
    Turn(const Turn&) = delete;
    Turn& operator=(const Turn&) = delete;

   private:
    const std::shared_ptr<Table> table_;
    const Key key_;
  };

  CodingTurns();

  // Null: another has the turn; `again` is called when it ends, on any thread and without a lock.
  std::unique_ptr<Turn> Take(const Key& key, std::function<void()> again);
  std::size_t taken() const;

 private:
  struct Table {
    Mutex mu;
    std::map<Key, std::vector<std::function<void()>>> waiting GUARDED_BY(mu);  // by turn taken
  };
  const std::shared_ptr<Table> table_;
};

}  // namespace baton

// A judge of patches that remembers on disk what it has judged: a choice that was cut short is made
// again in no time up to where it was.
//
//   PatchJournal journal("a.patches", key);
//   SelectPatches(errors, options, journal.Remember(judge));
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "common/scd/calibrate/patch.h"

namespace baton {

class PatchJournal {
 public:
  // Takes up what the file has of this `key`, which says what is judged and on what; anything else
  // is forgotten with the first judgement. An empty path: nothing is read or written.
  PatchJournal(std::string path, std::string key);

  // `judge`, asked only for what is not known. The journal must outlive what is returned, whose
  // errors are the judge's, and UNAVAILABLE when the file cannot be written.
  PatchJudge Remember(PatchJudge judge);

 private:
  absl::Status Write() const;

  const std::string path_;
  const std::string key_;
  std::map<std::vector<std::size_t>, double> known_;  // KL by set of layers, in their order
};

}  // namespace baton

#include "common/scd/calibrate/patch_journal.h"

#include <algorithm>
#include <utility>

#include "common/base/replace_file.h"
#include "common/base/status_macros.h"
#include "common/weights/mapped_file.h"
#include "nlohmann/json.hpp"

namespace baton {

PatchJournal::PatchJournal(std::string path, std::string key)
    : path_(std::move(path)), key_(std::move(key)) {
  if (path_.empty()) return;
  const absl::StatusOr<std::string> text = ReadTextFile(path_);
  if (!text.ok()) return;
  const auto json = nlohmann::json::parse(*text, nullptr, /*allow_exceptions=*/false);
  try {
    if (json.at("key").get<std::string>() != key_) return;
    known_ = json.at("kl").get<decltype(known_)>();
  } catch (const nlohmann::json::exception&) {
    known_.clear();
  }
}

PatchJudge PatchJournal::Remember(PatchJudge judge) {
  return [this, judge = std::move(judge)](const std::vector<std::vector<std::size_t>>& sets)
             -> absl::StatusOr<std::vector<double>> {
    std::vector<std::vector<std::size_t>> asked = sets;
    for (auto& set : asked) std::sort(set.begin(), set.end());
    std::vector<std::vector<std::size_t>> unknown;
    for (const auto& set : asked) {
      if (!known_.contains(set)) unknown.push_back(set);
    }
    if (!unknown.empty()) {
      BATON_ASSIGN_OR_RETURN(const std::vector<double> kl, judge(unknown));
      for (std::size_t i = 0; i < unknown.size(); ++i) known_[unknown[i]] = kl[i];
      BATON_RETURN_IF_ERROR(Write());
    }
    std::vector<double> kl;
    for (const auto& set : asked) kl.push_back(known_.at(set));
    return kl;
  };
}

absl::Status PatchJournal::Write() const {
  if (path_.empty()) return absl::OkStatus();
  return ReplaceFile(path_, nlohmann::json{{"key", key_}, {"kl", known_}}.dump() + "\n");
}

}  // namespace baton

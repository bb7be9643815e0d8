#include "tools/pair/stages.h"

#include <iostream>

namespace baton::tools {

void Stages::operator()(std::string_view stage, std::int64_t done, std::int64_t total) {
  if (stage != stage_) {
    bar_.reset();
    stage_ = stage;
    std::cerr << stage_ << "\n";
    const char* what = stage_.starts_with("fitting")     ? "layers"
                       : stage_.starts_with("choosing")  ? "sets"
                       : stage_.starts_with("loading")   ? "MiB"
                       : stage_.starts_with("gathering") ? "tokens"
                       : stage_.starts_with("answering") ? "questions"
                                                         : "documents";
    bar_.emplace(what, total);
  }
  bar_->Update(done);
}

}  // namespace baton::tools

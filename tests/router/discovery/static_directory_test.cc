#include "router/discovery/static_directory.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace baton {
namespace {

TEST(StaticDirectoryTest, ListsEveryNodeOnceInOrder) {
  auto directory = StaticDirectory::Create({"b:2", "a:1"}, {"[::1]:3", "b:2"});
  ASSERT_TRUE(directory.ok()) << directory.status();
  const std::vector<NodeEntry> nodes = (*directory)->Snapshot();
  EXPECT_THAT(nodes, testing::ElementsAre(NodeEntry{"b:2", NodeRole::kDecode},
                                          NodeEntry{"a:1", NodeRole::kDecode},
                                          NodeEntry{"[::1]:3", NodeRole::kPrefill},
                                          NodeEntry{"b:2", NodeRole::kPrefill}));
}

TEST(StaticDirectoryTest, RefusesWhatIsNoAddressAndNamesIt) {
  for (const char* bad : {"", "host", "host:", ":80", "host:x", "host:0", "host:65536", "::1:80"}) {
    const absl::Status status = StaticDirectory::Create({bad}, {}).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(bad));
  }
}

TEST(StaticDirectoryTest, RefusesTheSameNodeTwice) {
  const absl::Status status = StaticDirectory::Create({"a:1", "a:1"}, {}).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_THAT(std::string(status.message()), testing::HasSubstr("a:1"));
}

}  // namespace
}  // namespace baton

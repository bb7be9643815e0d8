// Owns the precompiled header that unoptimised tests share (baton_test in cmake/BatonRoom.cmake).
int main() {}

// A program that is there for the headers that are precompiled with it.
int main() { return 0; }

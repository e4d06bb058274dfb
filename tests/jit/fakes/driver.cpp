// A library with some of a driver's functions, one of them under its name of a later version only.
extern "C" {
int driver_old_and_new() { return 1; }
int driver_renamed_v2() { return 2; }
int driver_both() { return 3; }
int driver_both_v2() { return 4; }
}

// Breaks a rule on purpose: tests/layering checks that check_includes.py sees it.
int num_heads();

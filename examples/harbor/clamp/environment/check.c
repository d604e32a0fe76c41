#include <assert.h>

int clamp(int value, int low, int high);

int main(void) {
    assert(clamp(5, 0, 9) == 5);
    assert(clamp(-1, 0, 9) == 0);
    assert(clamp(12, 0, 9) == 9);
    return 0;
}

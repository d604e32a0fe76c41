int clamp(int value, int low, int high);

int main(void) {
    return clamp(100, -3, 50) != 50 || clamp(-100, -3, 50) != -3 || clamp(50, -3, 50) != 50;
}

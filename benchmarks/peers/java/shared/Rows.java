package godwit.peers;

import java.io.Serializable;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;

/**
 * The rows of the project's own workload, by the rule of godwit/workload/rows.py: row n is a pure function of the seed and n.
 *
 * <p>Decides the key of a row and the bytes that make a key's state large. Knows neither the clock nor an engine.
 */
public final class Rows implements Serializable {
  private static final long GAMMA = 0x9E3779B97F4A7C15L;
  private static final int KEY = 1;
  private static final int PAYLOAD = 3;
  private static final int HEAD_RANKS = 4_096;

  private final long seed;
  private final long keys;
  private final double skew;
  private final double[] head; // cumulated weights of the first ranks
  private final double tail; // weight of all ranks after them

  public Rows(long seed, long keys, double skew) {
    this.seed = seed;
    this.keys = keys;
    this.skew = skew;
    head = new double[(int) Math.min(keys, HEAD_RANKS)];
    for (int rank = 0; rank < head.length; rank++) {
      head[rank] = (rank > 0 ? head[rank - 1] : 0.0) + Math.pow(rank + 1, -skew);
    }
    tail = integral(head.length + 0.5, keys + 0.5, skew);
  }

  /** The key of a row: 0 to keys-1; with skew, key 0 is the most frequent. */
  public long key(long number) {
    double draw = (word(KEY, number) >>> 11) * 0x1.0p-53;
    return skew == 0.0 ? (long) (draw * keys) : rank(draw);
  }

  /** What a key's state is filled with: the payload of the row of the same number. */
  public byte[] ballast(long key, int size) {
    ByteBuffer bytes = ByteBuffer.allocate((size + 7) / 8 * 8).order(ByteOrder.LITTLE_ENDIAN);
    long word = word(PAYLOAD, key);
    while (bytes.hasRemaining()) {
      word += GAMMA;
      bytes.putLong(mixed(word));
    }
    return Arrays.copyOf(bytes.array(), size);
  }

  private long word(int column, long number) {
    return mixed(number * GAMMA + mixed((seed * 4 + column) * GAMMA));
  }

  /** The finaliser of splitmix64. */
  private static long mixed(long word) {
    word = (word ^ (word >>> 30)) * 0xBF58476D1CE4E5B9L;
    word = (word ^ (word >>> 27)) * 0x94D049BB133111EBL;
    return word ^ (word >>> 31);
  }

  private long rank(double draw) {
    double edge = head[head.length - 1];
    double target = draw * (edge + tail);
    if (target >= edge) {
      return tailRank(target - edge);
    }
    int found = Arrays.binarySearch(head, target);
    return found < 0 ? -found - 1 : found + 1; // the first rank whose cumulated weight is above the target
  }

  private long tailRank(double weight) {
    double edge = head.length + 0.5;
    double power = 1.0 - skew;
    double scaled = weight * Math.pow(edge, -power);
    double ratio = power == 0.0 ? Math.exp(scaled) : Math.exp(Math.log1p(power * scaled) / power);
    long rank = (long) Math.floor(edge * ratio - 0.5);
    return Math.max(Math.min(head.length, keys - 1), Math.min(rank, keys - 1));
  }

  private static double integral(double low, double high, double skew) {
    double power = 1.0 - skew;
    double span = Math.log(high / low);
    return power == 0.0 ? span : Math.pow(low, power) * Math.expm1(power * span) / power;
  }

  /** seed keys skew rows size: prints the keys of the first rows, then the ballast of the last key, for comparison. */
  public static void main(String[] given) {
    long keys = Long.parseLong(given[1]);
    Rows rows = new Rows(Long.parseLong(given[0]), keys, Double.parseDouble(given[2]));
    StringBuilder text = new StringBuilder();
    for (long number = 0; number < Long.parseLong(given[3]); number++) {
      text.append(rows.key(number)).append('\n');
    }
    for (byte each : rows.ballast(keys - 1, Integer.parseInt(given[4]))) {
      text.append(String.format("%02x", each));
    }
    System.out.println(text);
  }
}

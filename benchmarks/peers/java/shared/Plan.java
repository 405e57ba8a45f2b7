package godwit.peers;

import java.io.IOException;
import java.io.Serializable;
import java.io.UncheckedIOException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Instant;
import java.util.Map;

/**
 * Which rows there are, and when: first every key once, to fill its state (numbers below 0), then the load by the clock
 * (0 to rows-1), then every key once more where its state is to be looked at (from rows on).
 *
 * <p>The load starts at the time that a file names. Until there is such a file only the filling rows are due, so the load
 * cannot begin before all keys have their state.
 */
public final class Plan implements Serializable {
  private final long keys;
  private final long rows;
  private final long rate;
  private final long end;
  private final int stateBytes;
  private final String startFile;
  private final Rows drawn;
  private transient long startUs; // 0: not known yet

  public Plan(Map<String, String> options) {
    keys = Long.parseLong(options.get("keys"));
    rows = Long.parseLong(options.get("rows"));
    rate = Long.parseLong(options.get("rate"));
    end = rows + Long.parseLong(options.get("looks"));
    stateBytes = Integer.parseInt(options.get("bytes"));
    startFile = options.get("start");
    drawn = new Rows(Long.parseLong(options.get("seed")), keys, Double.parseDouble(options.get("skew")));
  }

  public long first() {
    return -keys;
  }

  /** The number after the last row's. */
  public long end() {
    return end;
  }

  public boolean fills(long number) {
    return number < 0;
  }

  public boolean looks(long number) {
    return number >= rows;
  }

  public long key(long number) {
    if (fills(number)) {
      return number + keys;
    }
    return looks(number) ? number - rows : drawn.key(number);
  }

  public byte[] ballast(long key) {
    return drawn.ballast(key, stateBytes);
  }

  /** The number after the last row that is due now. */
  public long due() {
    if (startUs == 0 && (startUs = start()) == 0) {
      return 0;
    }
    long elapsedUs = nowUs() - startUs;
    long load = elapsedUs < 0 ? 0 : -Math.floorDiv(-(elapsedUs + 1) * rate, 1_000_000L);
    return load < rows ? load : end;
  }

  private long start() {
    Path file = Path.of(startFile);
    try {
      return Files.exists(file) ? Long.parseLong(Files.readString(file).trim()) * 1_000 : 0;
    } catch (IOException failure) {
      throw new UncheckedIOException(failure);
    }
  }

  public static long nowUs() {
    Instant now = Instant.now();
    return now.getEpochSecond() * 1_000_000 + now.getNano() / 1_000;
  }
}

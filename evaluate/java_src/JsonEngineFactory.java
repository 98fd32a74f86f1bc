package captionpipeline;

import java.io.IOException;
import java.io.Reader;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import javax.script.AbstractScriptEngine;
import javax.script.Bindings;
import javax.script.ScriptContext;
import javax.script.ScriptEngine;
import javax.script.ScriptEngineFactory;
import javax.script.ScriptException;
import javax.script.SimpleBindings;

/**
 * A script engine named JavaScript that knows one statement: laying out a JSON text anew.
 *
 * <p>Java 15 removed its JavaScript engine, and SPICE 1.0 asks for one at its very end, only to
 * lay out the scores. Here the text is handed on as it is, which is the same JSON value. Any other
 * script is refused.
 */
public final class JsonEngineFactory implements ScriptEngineFactory {
  private static final String INPUT = "jsonString";
  private static final String OUTPUT = "result";
  private static final String KNOWN = "result=JSON.stringify(JSON.parse(jsonString),null,2)";

  private final class JsonEngine extends AbstractScriptEngine {
    @Override
    public Object eval(String script, ScriptContext context) throws ScriptException {
      if (!script.replaceAll("[\\s;]", "").equals(KNOWN)) {
        throw new ScriptException("only \"" + KNOWN + "\" is known here, not: " + script);
      }
      Object text = context.getAttribute(INPUT);
      if (!(text instanceof String)) {
        throw new ScriptException(INPUT + " is " + text + ", wanted a text");
      }
      context.setAttribute(OUTPUT, text, ScriptContext.ENGINE_SCOPE);
      return text;
    }

    @Override
    public Object eval(Reader reader, ScriptContext context) throws ScriptException {
      StringBuilder script = new StringBuilder();
      char[] part = new char[1024];
      try {
        for (int read = reader.read(part); read >= 0; read = reader.read(part)) {
          script.append(part, 0, read);
        }
      } catch (IOException error) {
        throw new ScriptException(error);
      }
      return eval(script.toString(), context);
    }

    @Override
    public Bindings createBindings() {
      return new SimpleBindings();
    }

    @Override
    public ScriptEngineFactory getFactory() {
      return JsonEngineFactory.this;
    }
  }

  @Override
  public ScriptEngine getScriptEngine() {
    return new JsonEngine();
  }

  @Override
  public String getEngineName() {
    return "caption-pipeline JSON";
  }

  @Override
  public String getEngineVersion() {
    return "1";
  }

  @Override
  public List<String> getNames() {
    return Arrays.asList("JavaScript", "javascript");
  }

  @Override
  public List<String> getExtensions() {
    return Collections.singletonList("js");
  }

  @Override
  public List<String> getMimeTypes() {
    return Collections.singletonList("application/javascript");
  }

  @Override
  public String getLanguageName() {
    return "JavaScript";
  }

  @Override
  public String getLanguageVersion() {
    return "JSON only";
  }

  @Override
  public Object getParameter(String key) {
    switch (key) {
      case ScriptEngine.ENGINE:
        return getEngineName();
      case ScriptEngine.ENGINE_VERSION:
        return getEngineVersion();
      case ScriptEngine.NAME:
        return getNames().get(0);
      case ScriptEngine.LANGUAGE:
        return getLanguageName();
      case ScriptEngine.LANGUAGE_VERSION:
        return getLanguageVersion();
      default:
        return null;
    }
  }

  @Override
  public String getMethodCallSyntax(String object, String method, String... arguments) {
    return object + "." + method + "(" + String.join(",", arguments) + ")";
  }

  @Override
  public String getOutputStatement(String text) {
    return "print(" + text + ")";
  }

  @Override
  public String getProgram(String... statements) {
    return String.join(";", statements);
  }
}
